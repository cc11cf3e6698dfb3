"""Drafters for the hashed target, which draft as well as they are told to, and engines of theirs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import replace

import numpy as np

from covey.contracts.errors import CoveyError
from covey.contracts.ports import Clock, Drafter
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, RowStatus, Trees
from covey.loop.configuration import EngineHooks
from covey.loop.engine import Engine
from covey.planner.planner import Planner
from tests.engines import engine_to
from tests.fakes import VOCAB, Collector, HashTarget, next_token
from tests.static_planner import StaticPlanner


class TextDrafter:
    """Implements `covey.contracts.ports.Drafter`: keeps the text of each tag, forgets it with a set probability, and
    drafts chains of what `guess` says."""

    def __init__(
        self, name: str = "hash", *, clock: Clock | None = None, step: float = 0.0, forget: float = 0.0, seed: int = 0
    ) -> None:
        self.name, self.clock, self.step, self.forget = name, clock, step, forget
        self.rng = random.Random(seed)
        self.tokens: dict[int, list[int]] = {}
        self.epoch = 7
        self.works: list[DraftWork] = []

    def info(self) -> DrafterInfo:
        return DrafterInfo(self.name, VOCAB, 512, self.epoch, 0)

    def guess(self, text: list[int], place: int) -> tuple[int, float]:
        """Return the draft at this place of a chain, after the text, and how likely the drafter says it is."""
        raise NotImplementedError

    def spent(self, work: DraftWork) -> tuple[float, float]:
        """Return the seconds that reading and drafting take."""
        return 0.0, self.step * max(1, int(work.depth.max(initial=0)))

    def draft(self, work: DraftWork) -> DraftReply:
        self.works.append(work)
        for tag in work.frees:
            assert self.tokens.pop(tag, None) is not None or self.forget, "freed twice"
        for opening in work.opens:
            self.tokens[opening.tag] = opening.tokens.tolist()
        status, seen, chains, scores = [], [], [], list[float]()
        for row, tag in enumerate(work.tags.tolist()):
            held, chain = self.tokens.get(tag), list[int]()
            chains.append(chain)
            if held is None or len(held) < work.keep[row] or self.rng.random() < self.forget:
                self.tokens.pop(tag, None)
                status.append(RowStatus.STALE)
                seen.append(0)
                continue
            held[:] = held[: work.keep[row]] + work.tokens[work.offsets[row] : work.offsets[row + 1]].tolist()
            path = 0.0
            for place in range(work.depth[row]):
                token, chance = self.guess(held + chain, place)
                chain.append(token)
                path += math.log(chance)
                scores.append(path)
            status.append(RowStatus.OK)
            seen.append(len(held))
        catch_up, drafting = self.spent(work)
        if self.clock is not None:
            self.clock.sleep(catch_up + drafting)
        trees = replace(Trees.chains(chains), scores=np.asarray(scores, np.float32))
        return DraftReply(
            np.asarray(status, np.int32), np.asarray(seen, np.int32), trees, self.epoch, catch_up, drafting
        )


class HashDrafter(TextDrafter):
    """Right with a set probability."""

    def __init__(self, skill: float, forget: float = 0.0, seed: int = 0) -> None:
        super().__init__(forget=forget, seed=seed)
        self.skill = skill
        self.before: Callable[[], None] = lambda: None

    def guess(self, text: list[int], place: int) -> tuple[int, float]:  # noqa: ARG002
        right = next_token(text)
        return (right if self.rng.random() < self.skill else (right + 1) % VOCAB), 1.0

    def draft(self, work: DraftWork) -> DraftReply:
        self.before()
        return super().draft(work)


def serving(
    drafters: Mapping[str, Drafter],
    planner: Planner | None = None,
    *,
    clock: Clock | None = None,
    deadline: float = 60.0,
    failed: Callable[[str, CoveyError], None] | None = None,
    blocks: int = 1000,
) -> tuple[Engine, HashTarget, Collector]:
    """An engine whose drafters have a real deadline, however time passes."""
    target, sink, hooks = HashTarget(blocks=blocks), Collector(), EngineHooks(drafter_failed=failed)
    planner = planner or StaticPlanner(4, 1)
    return engine_to(sink, target, planner, drafters, clock=clock, hooks=hooks, deadline=deadline), target, sink


def read_out(engine: Engine) -> None:
    """Nobody waits for a call that reads, but here: how much is read hangs on nobody's pace."""
    outstanding = [call.future for channel in engine._drafting._channels.values() for call in channel._calls]
    assert not wait(outstanding, 60).not_done
