"""Drafters for the hashed target, which draft and read as well as they are told to, and engines of theirs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import replace

import numpy as np

from covey.contracts.errors import CoveyError
from covey.contracts.ports import Clock, Drafter
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, Judged, RowStatus, Trees
from covey.loop.configuration import EngineHooks
from covey.loop.engine import Engine
from covey.planner.planner import Planner
from covey.requests.active import TextJudgement
from covey.requests.roster import Roster
from covey.requests.rounds import Judge, Plan
from covey.requests.scheduler import Batch
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


class Judging(HashDrafter):
    """Reads as told, and then judges by the whole language model; half of the time as if it were wrong."""

    def __init__(self, **given: float) -> None:
        super().__init__(1.0, **given)
        self.read: dict[int, int] = {}

    def draft(self, work: DraftWork) -> DraftReply:
        reply = super().draft(work)
        if work.judging is None:
            return reply
        assert not len(reply.trees.tokens)
        left, read, first, hits = work.judging.budget, [], [], []
        for row, (tag, judge) in enumerate(zip(work.tags.tolist(), work.judging.judge_from.tolist())):
            held = self.tokens.get(tag, [])
            start = min(self.read.get(tag, 0), len(held))
            stop = min(len(held), start + left)
            left -= stop - start
            self.read[tag] = stop
            read.append(stop)
            first.append(max(start, judge))
            hits.append([held[at] == next_token(held[:at]) for at in range(first[-1], stop)] if judge >= 0 else [])
            assert reply.status[row] != RowStatus.OK or len(held) == work.keep[row] + np.diff(work.offsets)[row]
        offsets = np.cumsum([0, *map(len, hits)]).astype(np.int32)
        flat = np.asarray([hit for each in hits for hit in each], np.int32)
        none = np.zeros(len(read), np.int32)
        judged = Judged(np.int32(read), np.int32(first), offsets, flat, none.astype(np.float32), none)
        return replace(reply, judged=judged)


class WithReaders(StaticPlanner):
    """One drafts; another reads and judges all of every row's text, so many tokens a round."""

    def __init__(self, reader: str, budget: int, depth: int = 3) -> None:
        super().__init__(depth)
        self.reader = reader
        self.budget = budget
        self.judgements: dict[int, TextJudgement] = {}

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        plan = super().plan(batch, roster, budget)
        rows = np.arange(len(batch.rows), dtype=np.int32)
        for row in batch.rows:
            if self.reader in row.judgements:
                self.judgements[row.key] = row.judgements[self.reader]
        judge = np.asarray([len(row.request.prompt) for row in batch.rows], np.int32)
        return replace(plan, judges=(Judge(self.reader, rows, judge, self.budget),))


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
