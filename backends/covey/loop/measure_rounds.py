"""Runs rounds of one shape after another to measure what they take (`covey.loop.measure`). No client waits for them.

A visit to a shape is a few rounds with the same number of rows and the same depth. The first drafter is measured at
many shapes, together with the target. Further drafters need few: verifying their drafts costs the same.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covey.contracts.ports import Clock, Drafter, Target
from covey.contracts.profile import Profile
from covey.contracts.types import Progress, Request, Sampling, Trees
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.rows import lay_out, spare
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan, Round, RoundRecord
from covey.requests.scheduler import Batch, Scheduler
from covey_client.costs.table import CostTable

LEAST = 1e-6  # seconds: a cost table allows no zero
SECONDS, AGAIN = 3.0, 0.5  # for all shapes, and for repeating the first ones
FURTHER = 1.0  # most further seconds for each drafter after the first
LONG_ROUND = 0.1  # of SECONDS: slow devices get the time of equally many rounds this long
STEADY = 1.5  # times the first measurement: beyond this the machine has other work
ROWS = ((1, 4, 16), (64,), (8, 32, 2))  # the most useful first: time may be up before the last
FEW = (1, 16, 4)  # for drafters after the first
# Rounds of a visit: the first differs from the later ones, and one of those may be an outlier. Long rounds leave time
# for only one.
FIRST, SEEN = 1, 3
VISITS = 4  # most visits to a shape
PROMPT, ROOM = 8, 128  # tokens of a row's prompt, and those it may emit
TENANT = "\0measure"  # a tenant that shares no cache with others


class Samples:
    """Seconds by key. `verify`: (rows, tokens); `overhead`, `plain`: rows; `draft`: (drafter, rows, depth); `switch`:
    (drafter, lag, rows)."""

    def __init__(self) -> None:
        self.verify: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self.overhead: defaultdict[int, list[float]] = defaultdict(list)
        self.plain: defaultdict[int, list[float]] = defaultdict(list)
        self.draft: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.switch: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)

    def decoded(self, rows: int, depth: int, drafter: str, rounds: Iterable[RoundRecord]) -> None:
        """Add rounds in which `rows` rows drafted `depth` tokens each. `drafter` is ignored at depth 0."""
        for each in rounds:
            aside = each.plan_seconds + each.commit_seconds
            self.verify[rows, rows * (depth + 1)].append(each.verify_seconds)
            self.overhead[rows].append(aside)
            if depth:
                self.draft[drafter, rows, depth].append(each.draft_seconds - each.catch_up_seconds)
            else:
                self.plain[rows].append(aside + each.draft_seconds + each.verify_seconds)

    def began(self, drafter: str, lag: int, rows: int, seconds: float) -> None:
        """Note how long it took `rows` rows to catch up and begin to draft together."""
        self.switch[drafter, lag, rows].append(seconds)

    def table(self, name: str, origin: str) -> CostTable:
        return CostTable(
            name=name,
            origin=origin,
            verify=tuple((*key, seconds) for key, seconds in _medians(self.verify)),
            overhead=tuple(_medians(self.overhead)),
            draft=_by_drafter(self.draft),
            switch=_by_drafter(self.switch),
            plain=tuple(_medians(self.plain)),
        )


def _medians(samples: defaultdict[Any, list[float]]) -> list[tuple[Any, float]]:
    return [(key, float(f"{max(LEAST, statistics.median(times)):.4g}")) for key, times in sorted(samples.items())]


def _by_drafter(
    samples: defaultdict[tuple[str, int, int], list[float]],
) -> dict[str, tuple[tuple[int, int, float], ...]]:
    cells_of: dict[str, list[tuple[int, int, float]]] = {}
    for (drafter, first, second), seconds in _medians(samples):
        cells_of.setdefault(drafter, []).append((first, second, seconds))
    return {drafter: tuple(cells) for drafter, cells in cells_of.items()}


class Bench:
    """An engine without clients. Every round has the depth that is measured."""

    def __init__(
        self, target: Target, drafters: Mapping[str, Drafter], profile: Profile, clock: Clock, caller: str
    ) -> None:
        self.samples = Samples()
        settings, info = profile.scheduler, target.info()
        self._clock = clock
        self._planner = _Fixed(info.vocab_size)
        self._drafters = tuple(drafters) or ("",)
        self._info = info
        limits = replace(settings, max_waiting=settings.max_running)
        scheduler = Scheduler.of(limits, info.block_size, growth_tokens=ROOM)
        self._room = min(ROOM, info.max_positions - PROMPT)
        self._engine = Engine(
            target,
            scheduler,
            self._planner,
            _Nobody(),
            clock,
            EngineConfig(drafters, draft_deadline=profile.speculation.draft_deadline_ms / 1000, caller=caller),
            EngineHooks(observe=self._observe),
        )
        for name, drafter in drafters.items():
            self._engine.roster.came(name, drafter.info())
        self._max_depth = profile.speculation.max_depth if drafters else 0
        self._most = min(scheduler.max_running, info.total_blocks // -(-(PROMPT + self._room) // info.block_size))
        self._rng = np.random.default_rng(0)
        self._keys = 0
        self._seen: list[RoundRecord] = []
        self._spent = self._took = 0.0  # seconds: in all, and of the last round
        self.steady = True  # no sign of other work on the machine so far

    def run(self, go_on: Callable[[], bool]) -> bool:
        """Measure until every shape is seen or time is up. Return False if `go_on` or a failure ended it earlier."""
        ends = SECONDS - AGAIN
        try:
            for drafter in self._drafters:
                self._planner.drafter = drafter
                for rows, depth in self._shapes() if drafter == self._drafters[0] else self._few_shapes():
                    if self._spent >= ends:
                        break
                    if not self._visit(rows, depth, go_on):
                        return False
                ends += FURTHER
            return self._again(go_on, ends - FURTHER + AGAIN)
        finally:
            self._leave()

    def _again(self, go_on: Callable[[], bool], ends: float) -> bool:
        """Repeat the first shapes to check that the machine is as fast as before. Returns the same as `run`."""
        for rows in ROWS[0]:
            before = len(self.samples.plain.get(rows, ()))
            if not before or self._spent >= ends:
                continue
            if not self._visit(rows, 0, go_on):
                return False
            plain = self.samples.plain[rows]
            spans = [statistics.median(part) for part in (plain[:before], plain[before:]) if part]
            self.steady &= max(spans) <= STEADY * min(spans)
        return True

    def _shapes(self) -> Iterator[tuple[int, int]]:
        """Yield rows and depth, the most telling first: the planner weighs every draft against plain rounds."""
        groups = [[rows for rows in group if rows <= self._most] for group in ROWS]
        for _ in range(VISITS):
            for group in groups:
                yield from ((rows, 0) for rows in group)
                yield from self._drafting(group, lambda deepest: {deepest // 3, deepest})
            for group in groups:
                yield from self._drafting(group, lambda deepest: {1, 2 * deepest // 3} - {deepest // 3, deepest})

    def _few_shapes(self) -> Iterator[tuple[int, int]]:
        """Yield the few shapes that are measured for a drafter after the first."""
        yield from self._drafting([rows for rows in FEW if rows <= self._most], lambda deepest: {1, deepest})

    def _drafting(self, group: Sequence[int], depths: Callable[[int], set[int]]) -> Iterator[tuple[int, int]]:
        for rows in group:
            deepest = min(self._max_depth, self._engine.scheduler.token_budget // rows - 1)
            yield from ((rows, depth) for depth in sorted(depths(deepest)) if depth > 0)

    def _visit(self, rows: int, depth: int, go_on: Callable[[], bool]) -> bool:
        """Run rounds of one shape. Return False if no further round of any shape can run."""
        self._planner.depth = 0
        self._fill(rows, (FIRST + SEEN) * (depth + 1) + 1)
        while not self._decoding(rows):  # read their prompts first
            if not go_on() or not self._round():
                return False
        self._planner.depth = depth
        self._seen = []
        self._planner.lag, least, caught_up = 0, math.inf, None
        for _ in range(FIRST + SEEN):
            if not go_on() or not self._round():
                return False
            if caught_up is None and self._planner.answered:
                caught_up = sum(each.catch_up_seconds for each in self._seen)
            least = min(least, self._took)
            if len(self._seen) > FIRST and least > LONG_ROUND:
                break
        drafter = self._planner.drafter
        if caught_up:
            self.samples.began(drafter, self._planner.lag, rows, caught_up)
        fitting = [each for each in self._seen[FIRST:] if _fits(each, rows, depth)]
        if self._planner.answered:
            self.samples.decoded(rows, depth, drafter, fitting)
        return True

    def _round(self) -> bool:
        started = self._clock.now()
        done = self._engine.round()
        self._took = self._clock.now() - started
        self._spent += min(LONG_ROUND, self._took)
        return done

    def _fill(self, rows: int, room: int) -> None:
        """Let `rows` requests run, each with room for `room` more tokens."""
        running = list(self._engine.scheduler.running.values())
        kept = [active for active in running if active.room > room][:rows]
        for active in running:
            if active not in kept:
                self._engine.cancel(active.key)
        for _ in range(rows - len(kept)):
            self._keys += 1
            vocabulary = self._info.vocab_size
            prompt = self._rng.integers(vocabulary // 4, vocabulary, PROMPT).astype(np.int32)
            sampling = Sampling(temperature=1.0, seed=self._keys)
            self._engine.submit(Request(self._keys, prompt, self._room, sampling, PROMPT, tenant=TENANT))

    def _decoding(self, rows: int) -> bool:
        """Return whether exactly `rows` requests run and all of them decode."""
        running = self._engine.scheduler.running.values()
        return len(running) == rows and all(active.decoding for active in running)

    def _observe(self, record: RoundRecord) -> None:
        self._seen.append(record)

    def _leave(self) -> None:
        """Have the target free the requests, and end the engine's threads. The drafter frees them at the first call of
        the caller's next engine."""
        self._planner.depth = 0
        for key in list(self._engine.scheduler.running):
            self._engine.cancel(key)
        self._engine.round()
        self._engine.stop()
        self._engine.run()  # returns at once


def _fits(record: RoundRecord, rows: int, depth: int) -> bool:
    return (record.decoding, record.rows, record.drafted) == (rows, rows, rows * depth)


class _Fixed:
    """Implements `Planner` with one depth and one drafter for every row. A drafter without a proposal for random text
    keeps its time; made-up tokens stand in, so that the pass has the intended size."""

    def __init__(self, vocabulary: int) -> None:
        self.drafter = ""
        self.depth = 0
        self.lag = 0  # largest mean lag that the drafter has caught up on since the last reset
        self.answered = True  # whether the drafter answered in the last round that asked it
        self._vocabulary = vocabulary

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        depth = min(self.depth, spare(batch, budget))
        if depth and batch.rows:  # a batch that only frees tags has no rows
            unseen = [active.num_tokens - active.seen.get(self.drafter, 0) for active in batch.rows]
            self.lag = max(self.lag, -(-sum(unseen) // len(unseen)))
        return lay_out(batch, (self.drafter,) * batch.decoding, roster, budget, depth, 1)

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        rows, trees = batch.rows[: batch.decoding], drafted.trees
        self.answered = not self.depth or bool(drafted.answered[: batch.decoding].all())
        whole = len(rows) * self.depth
        if len(trees.tokens) == whole or len(rows) < len(batch.rows):
            return trees
        parents = np.tile(np.arange(-1, self.depth - 1, dtype=np.int32), len(rows))
        return Trees(
            np.arange(0, whole + 1, self.depth, dtype=np.int32),
            np.arange(whole, dtype=np.int32) % self._vocabulary,
            parents,
            -(parents + 2).astype(np.float32),
        )

    def prefill_allowance(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:  # noqa: ARG002
        return None

    def learn(self, done: Round) -> None:
        """Learn nothing."""

    def meanwhile(self) -> None:
        """Do nothing."""


class _Nobody:
    """Implements `covey.contracts.ports.Sink`."""

    def publish(self, batch: Sequence[Progress]) -> None:
        """Drop the progress."""
