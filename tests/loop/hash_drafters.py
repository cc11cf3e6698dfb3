"""Drafters for the hashed target, which draft as well as they are told to, and engines of theirs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import wait

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


class HashDrafter:
    """Implements `covey.contracts.ports.Drafter`: right with a set probability, and as forgetful as it is told to
    be."""

    def __init__(self, skill: float, forget: float = 0.0, seed: int = 0) -> None:
        self.skill = skill
        self.forget = forget
        self.rng = random.Random(seed)
        self.tokens: dict[int, list[int]] = {}
        self.epoch = 7
        self.works: list[DraftWork] = []
        self.before: Callable[[], None] = lambda: None

    def info(self) -> DrafterInfo:
        return DrafterInfo("hash", VOCAB, 512, self.epoch, 0)

    def draft(self, work: DraftWork) -> DraftReply:
        self.before()
        self.works.append(work)
        for tag in work.frees:
            assert self.tokens.pop(tag, None) is not None or self.forget, "freed twice"
        for opening in work.opens:
            self.tokens[opening.tag] = opening.tokens.tolist()
        status, seen, tokens, sizes = [], [], [], []
        for row, tag in enumerate(work.tags.tolist()):
            held = self.tokens.get(tag)
            if held is None or len(held) < work.keep[row] or self.rng.random() < self.forget:
                self.tokens.pop(tag, None)
                status.append(RowStatus.STALE)
                seen.append(0)
                sizes.append(0)
                continue
            held[:] = held[: work.keep[row]] + work.tokens[work.offsets[row] : work.offsets[row + 1]].tolist()
            chain = list(held)
            for _ in range(work.depth[row]):
                right = next_token(chain)
                chain.append(right if self.rng.random() < self.skill else (right + 1) % VOCAB)
            tokens += chain[len(held) :]
            status.append(RowStatus.OK)
            seen.append(len(held))
            sizes.append(int(work.depth[row]))
        parents = np.concatenate([np.arange(-1, size - 1) for size in sizes]) if sizes else np.zeros(0)
        trees = Trees(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
            np.asarray(tokens, np.int32),
            parents.astype(np.int32),
            np.zeros(len(tokens), np.float32),
        )
        return DraftReply(np.asarray(status, np.int32), np.asarray(seen, np.int32), trees, self.epoch, 0.0, 0.0)


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
