from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from covey.contracts.clock import RealClock
from covey.contracts.errors import CoveyError, PortError, PortTimeout, StubDead
from covey.contracts.ports import Clock, Drafter
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import NO_FLOATS, DrafterInfo, DraftReply, DraftWork, Judged, Objective, RowStatus, Trees
from covey.loop.channel import LEAST_NEEDED, Channel
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.drafting import Drafting
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.requests.active import ActiveRequest, TextJudgement
from covey.requests.roster import LONGEST_REST, Roster
from covey.requests.rounds import Judge, Plan
from covey.requests.scheduler import Batch, Scheduler
from tests.fakes import VOCAB, Collector, HashTarget, ManualClock, continuation, next_token, request
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


def run(
    drafters: dict[str, Drafter],
    *,
    requests: int = 6,
    count: int = 30,
    depth: int = 4,
    clock: Clock | None = None,
    deadline: float = 60.0,
    failed: Callable[[str, CoveyError], None] | None = None,
    blocks: int = 1000,
    **settings: object,
) -> tuple[HashTarget, Collector]:
    target, sink = HashTarget(blocks=blocks), Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=target.block_size)
    planner = StaticPlanner(depth, 1)
    engine = Engine(
        target,
        scheduler,
        planner,
        sink,
        clock or ManualClock(),
        EngineConfig(drafters, draft_deadline=deadline),
        EngineHooks(drafter_failed=failed),
    )
    names = list(drafters)
    prompts = {key: [key, key * 3 % VOCAB, 5] for key in range(1, requests + 1)}
    for key, prompt in prompts.items():
        engine.submit(request(key, prompt, count + key, drafter=names[key % len(names)], **settings))
    rounds = 0
    while engine.round():
        rounds += 1
        assert rounds < 5000
    for key, prompt in prompts.items():
        assert sink.tokens[key] == continuation(prompt, count + key), "speculation changed the text"
    assert target.used == 0
    return target, sink


@pytest.mark.parametrize("skill", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_text_is_the_targets_whatever_is_drafted(skill: float, depth: int) -> None:
    drafter = HashDrafter(skill)
    _target, sink = run({"one": drafter}, depth=depth)
    last = sink.ended[1]
    assert last.drafted > 0
    assert last.accepted == {0.0: 0, 1.0: last.drafted}.get(skill, last.accepted)
    assert 0 <= last.accepted <= last.drafted
    assert sum(count * drafts for count, drafts in enumerate(last.acceptance)) == last.accepted
    assert len(last.acceptance) <= depth + 1
    assert sum(last.acceptance) <= last.rounds


def test_a_good_drafter_saves_rounds() -> None:
    plain, _ = run({"one": HashDrafter(1.0)}, depth=0)
    fast, _ = run({"one": HashDrafter(1.0)}, depth=4)
    assert len(fast.works) < len(plain.works) / 3


def test_drafters_get_deltas_only() -> None:
    drafter = HashDrafter(0.5)
    run({"one": drafter})
    opened = [opening.tag for work in drafter.works for opening in work.opens]
    assert sorted(opened) == [1, 2, 3, 4, 5, 6], "each tag is opened once"
    assert max(len(work.tokens) / len(work.tags) for work in drafter.works) <= 6
    assert set(drafter.tokens) <= set(range(1, 7))


def test_never_drafts_past_what_a_request_may_emit() -> None:
    target, _ = run({"one": HashDrafter(1.0)}, depth=8)
    for work in target.works:
        assert len(work.trees.tokens) + work.chunk.sum() <= 64, "beyond the token budget"


def test_several_drafters_share_a_round_and_a_forgetful_one_is_told_again() -> None:
    drafters = {"a": HashDrafter(0.9, seed=1), "b": HashDrafter(0.4, forget=0.3, seed=2), "c": HashDrafter(1.0)}
    run(dict(drafters))
    assert all(drafter.works for drafter in drafters.values())


def test_a_restarted_drafter_is_told_again() -> None:
    drafter = HashDrafter(1.0)
    calls = 0

    def restart() -> None:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            drafter.tokens.clear()

    drafter.forget = 1e-12
    drafter.before = restart
    run({"one": drafter})


def test_a_dead_drafter_costs_no_request_and_rests_longer_each_time() -> None:
    clock = ManualClock()
    drafter = HashDrafter(1.0)
    asked: list[float] = []

    def die() -> None:
        asked.append(clock.now())
        raise StubDead("not healthy")

    drafter.before = die
    reports: list[str] = []
    target = HashTarget()
    step = target.step

    def slow_step(work):  # type: ignore[no-untyped-def]
        clock.sleep(0.1)
        return step(work)

    sink = Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=4)
    engine = Engine(
        type("Slow", (), {"info": target.info, "step": staticmethod(slow_step)})(),
        scheduler,
        StaticPlanner(4, 1),
        sink,
        clock,
        EngineConfig({"one": drafter}),
        EngineHooks(drafter_failed=lambda name, error: reports.append(f"{name}: {error}")),
    )
    engine.submit(request(1, [1, 2], 100))
    while engine.round():
        pass
    assert sink.tokens[1] == continuation([1, 2], 100)
    gaps = np.diff(asked)
    assert len(asked) >= 4
    assert (np.diff(gaps) > 0).all(), "each rest is longer than the one before"
    assert reports[0] == "one: not healthy"


def test_a_slow_drafter_is_left_behind_and_asked_again_when_it_is_done() -> None:
    release = threading.Event()
    drafter = HashDrafter(1.0)
    seen = 0

    def wait() -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            release.wait(10)

    drafter.before = wait
    errors: list[CoveyError] = []

    def failed(_name: str, error: CoveyError) -> None:
        errors.append(error)
        release.set()

    run({"one": drafter}, requests=1, count=60, clock=RealClock(), deadline=0.05, failed=failed)
    assert len(errors) >= 1
    assert isinstance(errors[0], PortError)


def test_requests_can_turn_speculation_off_or_fix_it() -> None:
    drafter = HashDrafter(1.0)
    _target, sink = run({"one": drafter}, speculation="off")
    assert not drafter.works
    assert sink.ended[1].drafted == 0
    run({"one": drafter}, speculation="fixed:2")
    assert max(int(work.depth.max()) for work in drafter.works) == 2


def test_an_exhausted_pool_with_drafts_still_gives_the_same_text() -> None:
    run({"one": HashDrafter(0.7)}, blocks=30, requests=8, count=40)


@pytest.mark.parametrize("known", [False, True])
def test_a_late_call_that_ends_in_death_is_reported_as_death_unless_that_is_known(known: bool) -> None:
    """Its successor would be ended for it."""
    slow, errors = Slow(StubDead("not healthy")), list[CoveyError]()
    engine, _target, sink = serving({"one": slow}, ManualClock(), 0.05, lambda _name, error: errors.append(error))
    engine.submit(request(1, [1, 2], 30))
    while not errors:
        engine.round()
    assert type(errors[0]) is PortTimeout
    slow.let_go(engine)
    if known:
        engine.roster.gone("one")
    while engine.round():
        pass
    assert [type(error) for error in errors] == [PortTimeout, PortError if known else StubDead]
    assert sink.tokens[1] == continuation([1, 2], 30)


def serving(
    drafters: dict[str, Drafter], clock: Clock, deadline: float, failed: Callable[[str, CoveyError], None] | None = None
) -> tuple[Engine, HashTarget, Collector]:
    """An engine whose drafters have a real deadline, however time passes."""
    target, sink = HashTarget(), Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=4)
    planner = StaticPlanner(4, 1)
    engine = Engine(
        target,
        scheduler,
        planner,
        sink,
        clock,
        EngineConfig(drafters, draft_deadline=deadline),
        EngineHooks(drafter_failed=failed),
    )
    return engine, target, sink


class Slow:
    """A drafter's first call takes until `release`, and then fails with `error` if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.drafter = HashDrafter(1.0)
        self.drafter.before = self._wait
        self.begun, self.release, self.ended = (threading.Event() for _ in range(3))
        self._error = error
        self._calls = 0
        self.hangs = False

    def info(self) -> DrafterInfo:
        return self.drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        reply = self.drafter.draft(work)
        if self._calls == 1:
            self.ended.set()
            if self._error is not None:
                raise self._error
        return reply

    def _wait(self) -> None:
        self._calls += 1
        if self._calls == 1:
            self.thread, self.hangs = threading.current_thread(), True
            self.begun.set()
            self.release.wait(30)
            self.hangs = False

    def let_go(self, engine: Engine) -> None:
        self.release.set()
        assert self.ended.wait(30)
        read_out(engine)
        engine._drafting._deadline = 60.0  # whatever comes now is in time, however busy the machine is


def test_what_a_late_call_read_counts() -> None:
    """The catch-up took longer than the deadline; meanwhile one request went on and another ended."""
    clock, slow = ManualClock(), Slow()
    engine, _target, sink = serving({"one": slow}, clock, 0.05)
    engine.submit(request(1, [1, 2, 3], 60))
    engine.submit(request(2, [4, 5], 60))
    for _ in range(6):
        engine.round()
    held = engine.scheduler.running[1].num_tokens - 5
    assert held == 4, "the prompt, and the token that it gave"
    engine.cancel(2)
    engine.round()
    slow.let_go(engine)
    clock.sleep(LONGEST_REST)
    engine.submit(request(3, [7, 8], 20))
    engine.round()
    first, second = slow.drafter.works
    assert [opening.tag for opening in first.opens] == [1, 2]
    assert second.tags.tolist() == [1]
    assert second.opens == (), "what was read in time or not is not read again"
    assert second.keep.tolist() == [held]
    assert second.frees == (2,), "the late call opened it, and it has ended"
    while engine.round():
        pass
    assert sink.tokens[1] == continuation([1, 2, 3], 60)
    assert sink.tokens[3] == continuation([7, 8], 20)
    assert 2 not in slow.drafter.tokens


@pytest.mark.parametrize("reads", [False, True])
def test_a_call_whose_process_was_replaced_is_not_waited_for(reads: bool) -> None:
    """It was to be answered later, and never is. The next process is asked, and knows nothing."""
    clock, slow, errors = ManualClock(), Slow(), list[CoveyError]()
    if reads:
        engine, _target, sink = watched(WithReaders("one", 1000, depth=0), {"one": slow}, clock)
    else:
        engine, _target, sink = serving({"one": slow}, clock, 0.05, lambda _name, error: errors.append(error))
    engine.submit(request(1, [1, 2], 60))
    for _ in range(6):
        engine.round()
    assert slow.begun.wait(30)
    assert not slow.drafter.works, "it hangs"
    engine.roster.gone("one")
    clock.sleep(LONGEST_REST)
    engine.roster.came("one", slow.info())
    engine._drafting._deadline = 60.0
    while engine.round():
        read_out(engine)
        clock.sleep(LONGEST_REST)
    assert slow.hangs, "nobody waited for it"
    first = slow.drafter.works[0]
    assert [opening.tag for opening in first.opens] == [1]
    assert first.keep.tolist() == [first.opens[0].tokens.size], "what the other was told is told again"
    assert sink.tokens[1] == continuation([1, 2], 60)
    slow.release.set()
    slow.thread.join(30)
    assert not slow.thread.is_alive(), "nothing is asked in that thread any more"


def test_a_call_to_the_process_that_is_there_goes_on_whatever_is_learnt_of_the_drafter_meanwhile() -> None:
    """As when its KV memory shrank, or when a call to the process before it is known to be lost only then."""
    clock, slow = ManualClock(), Slow()
    engine, _target, sink = watched(WithReaders("one", 1000, depth=0), {"one": slow}, clock)
    engine.roster.gone("one")
    engine.roster.came("one", slow.info())
    clock.sleep(1.0)
    engine.submit(request(1, [1, 2], 20))
    for _ in range(3):
        engine.round()
    reads = outstanding(engine)
    engine.roster.came("one", slow.info())
    engine.round()
    assert outstanding(engine) == reads
    slow.release.set()
    while engine.round():
        read_out(engine)
    assert len(slow.drafter.works[0].opens) == 1
    assert not any(work.opens for work in slow.drafter.works[1:]), "it is told nothing again"
    assert sink.tokens[1] == continuation([1, 2], 20)


def test_a_late_call_that_failed_is_told_all_again() -> None:
    """It may have opened the tags before it failed: they are opened again, and those that ended are freed."""
    clock, errors = ManualClock(), list[str]()
    slow = Slow(ValueError("not what was agreed"))
    engine, _target, sink = serving({"one": slow}, clock, 0.05, lambda _name, error: errors.append(str(error)))
    engine.submit(request(1, [1, 2, 3], 60))
    engine.submit(request(2, [4, 5], 60))
    for _ in range(4):
        engine.round()
    engine.cancel(2)
    engine.round()
    slow.let_go(engine)
    for _ in range(3):
        clock.sleep(LONGEST_REST)
        engine.round()
    assert errors == ["no proposals within 0.05 s", "ValueError: not what was agreed"]
    second = slow.drafter.works[1]
    assert [opening.tag for opening in second.opens] == [1]
    assert second.frees == (2,)
    while engine.round():
        pass
    assert sink.tokens[1] == continuation([1, 2, 3], 60)


def test_rows_of_a_call_that_failed_are_opened_again() -> None:
    """Half of the work may be done: what a drafter computed of them is not to be built upon."""
    clock, drafter = ManualClock(), HashDrafter(1.0)
    failing = False

    def fail() -> None:
        if failing:
            raise PortError("half-way")

    drafter.before = fail
    engine, _target, sink = serving({"one": drafter}, clock, 30.0)
    engine.submit(request(1, [1, 2, 3], 60))
    for _ in range(4):
        engine.round()
    failing, before = True, len(drafter.works)
    engine.round()
    failing = False
    clock.sleep(LONGEST_REST)
    engine.round()
    assert [opening.tag for opening in drafter.works[before].opens] == [1]
    while engine.round():
        pass
    assert sink.tokens[1] == continuation([1, 2, 3], 60)


def test_whatever_a_drafter_raises_is_its_own_failure(caplog: pytest.LogCaptureFixture) -> None:
    clock, errors = ManualClock(), list[CoveyError]()
    broken, whole = HashDrafter(1.0), HashDrafter(1.0)

    def fail() -> None:
        raise TimeoutError("of its own") if errors else IndexError("no such row")

    broken.before = fail
    engine, _target, sink = serving({"one": broken, "two": whole}, clock, 30.0, lambda _name, e: errors.append(e))
    for key, name in ((1, "one"), (2, "two")):
        engine.submit(request(key, [key, 5], 50, drafter=name))
    while engine.round():
        clock.sleep(LONGEST_REST)
    for key in (1, 2):
        assert sink.tokens[key] == continuation([key, 5], 50)
    assert [str(error) for error in errors[:2]] == ["IndexError: no such row", "TimeoutError: of its own"]
    assert all(isinstance(error, PortError) for error in errors)
    assert "IndexError" in caplog.text
    assert sink.ended[2].accepted > 20


class Shipping(HashDrafter):
    """Ships q rows of `places` entries, the first of them the node's own token."""

    def __init__(self, places: int) -> None:
        super().__init__(1.0)
        self.places = places

    def draft(self, work: DraftWork) -> DraftReply:
        reply = super().draft(work)
        ids = (reply.trees.tokens[:, None] + np.arange(self.places, dtype=np.int32)) % VOCAB
        probs = np.tile(np.float32(0.5) ** np.arange(1, self.places + 1, dtype=np.float32), (len(ids), 1))
        return replace(reply, trees=replace(reply.trees, q_ids=ids, q_probs=probs))


def test_a_drafter_without_q_rows_does_not_cost_the_others_theirs() -> None:
    places = {"a": 4, "b": 0, "c": 2}
    drafters = {name: Shipping(count) if count else HashDrafter(1.0) for name, count in places.items()}
    target, _sink = run(dict(drafters), requests=6)
    names = list(drafters)
    together = [work for work in target.works if len(work.tags) == 6 and (work.trees.sizes > 0).all()]
    assert together
    for work in together:
        q_ids, q_probs = work.trees.q_ids, work.trees.q_probs
        assert q_ids is not None
        assert q_probs is not None
        assert q_ids.shape == q_probs.shape == (len(work.trees.tokens), 4)
        for row, tag in enumerate(work.tags.tolist()):
            own = slice(work.trees.offsets[row], work.trees.offsets[row + 1])
            count = places[names[tag % 3]]
            assert (q_ids[own, 0] == work.trees.tokens[own]).all()
            expected = [0.5, 0.25, 0.125, 0.0625][:count] or [1.0]
            assert (q_probs[own] == np.asarray(expected + [0.0] * (4 - len(expected)), np.float32)).all()


def test_the_time_in_which_drafters_work_is_used() -> None:
    """While the drafters of a round are at work, and in no other, the planner may do what it put off."""
    drafter, sink = HashDrafter(0.5), Collector()
    working, let, used = threading.Event(), threading.Event(), []

    def work() -> None:
        working.set()
        let.wait(10)
        let.clear()
        working.clear()

    drafter.before = work

    class Putting(StaticPlanner):
        def meanwhile(self, batch: Batch, plan: Plan, roster: Roster) -> None:  # noqa: ARG002
            used.append(working.wait(5))
            let.set()

    planner = Putting(2, 1)
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=4)
    engine = Engine(
        HashTarget(), scheduler, planner, sink, RealClock(), EngineConfig({"only": drafter}, draft_deadline=60)
    )
    engine.submit(request(1, [1, 2, 3], 9))
    while engine.round():
        pass
    assert used == [True] * len(drafter.works)
    engine.submit(request(2, [1, 2, 3], 9, speculation="off"))
    while engine.round():
        pass
    assert len(used) == len(drafter.works)
    assert sink.tokens[2] == continuation([1, 2, 3], 9)


def test_a_drafter_without_scores_drafts_beside_one_with_scores() -> None:
    """What cannot be compared is not ranked, and every array has a value for each node."""

    class Unscored(HashDrafter):
        def draft(self, work: DraftWork) -> DraftReply:
            reply = super().draft(work)
            return replace(reply, trees=replace(reply.trees, scores=NO_FLOATS))

    target, sink = HashTarget(), Collector()
    scheduler = Scheduler(max_running=8, max_waiting=8, token_budget=64, growth_tokens=16, block_size=4)
    planner = build(SpeculationSettings(policy="tetris", max_depth=4), ("scored", "unscored"))
    drafters = {"scored": HashDrafter(0.8), "unscored": Unscored(0.8)}
    engine = Engine(target, scheduler, planner, sink, ManualClock(), EngineConfig(drafters, draft_deadline=60))
    for key, name in enumerate(drafters):
        engine.submit(request(key, [1, 2, key], 40, drafter=name))
    while engine.round():
        pass
    engine.stop()
    engine.run()
    assert {key: sink.tokens[key] for key in range(2)} == {key: continuation([1, 2, key], 40) for key in range(2)}
    mixed = [work.trees for work in target.works if work.trees.sizes.tolist().count(0) < len(work.trees.sizes) > 1]
    assert mixed
    assert all(len(trees.scores) in (0, len(trees.tokens)) for trees in mixed)


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


def reading(planner: StaticPlanner, drafters: dict[str, Drafter], count: int = 40) -> Collector:
    engine, target, sink = watched(planner, drafters)
    for key in range(1, 5):
        engine.submit(request(key, [key, 5], count, drafter="one"))
    rounds = 0
    while engine.round():
        read_out(engine)
        rounds += 1
        assert rounds < 1000
    for key in range(1, 5):
        assert sink.tokens[key] == continuation([key, 5], count)
    assert target.used == 0
    return sink


def read_out(engine: Engine) -> None:
    """Nobody waits for a call that reads, but here: how much is read hangs on nobody's pace."""
    assert not wait(outstanding(engine), 60).not_done


def outstanding(engine: Engine) -> list[Future[DraftReply]]:
    return [call.future for channel in engine._drafting._channels.values() for call in channel._calls]


def watched(
    planner: StaticPlanner, drafters: dict[str, Drafter], clock: Clock | None = None
) -> tuple[Engine, HashTarget, Collector]:
    target, sink = HashTarget(), Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=target.block_size)
    engine = Engine(target, scheduler, planner, sink, clock or RealClock(), EngineConfig(drafters, draft_deadline=60.0))
    return engine, target, sink


@pytest.mark.parametrize("budget", [1000, 7])
def test_a_drafter_reads_what_others_drafted_and_says_what_it_would_have_drawn(budget: int) -> None:
    one, two = HashDrafter(0.6), Judging()
    planner = WithReaders("two", budget)
    reading(planner, {"one": one, "two": two})
    assert not any(work.depth.any() for work in two.works)
    assert all(work.judging is None for work in one.works)
    assert set(planner.judgements) == {1, 2, 3, 4}
    for judged in planner.judgements.values():
        assert judged.start == 2
        assert judged.hits == [1] * len(judged.hits)
        assert judged.end == judged.read
    assert max(judged.end for judged in planner.judgements.values()) > (30 if budget == 1000 else 10)


def test_who_reads_and_then_drafts_is_told_everything_once() -> None:
    both = Judging()
    reading(WithReaders("one", 1000), {"one": both})
    told: dict[int, int] = {}
    for work in both.works:
        for opening in work.opens:
            assert opening.tag not in told
            told[opening.tag] = len(opening.tokens)
        for tag, keep, new in zip(work.tags.tolist(), work.keep.tolist(), np.diff(work.offsets).tolist()):
            assert keep == told[tag], "told again, or with a gap"
            told[tag] += new


def test_a_forgetful_reader_is_told_again_and_what_it_says_then_stands_alone() -> None:
    planner = WithReaders("two", 1000)
    reading(planner, {"one": HashDrafter(0.6), "two": Judging(forget=0.2)})
    assert all(set(judged.hits) <= {1} for judged in planner.judgements.values())
    assert all(judged.end <= 42 for judged in planner.judgements.values())


def test_a_call_that_reads_outlives_its_round_and_nobody_waits() -> None:
    planner, reader = WithReaders("two", 1000), Judging()
    let = threading.Event()
    reader.before = let.wait
    engine, _target, sink = watched(planner, {"one": HashDrafter(1.0), "two": reader})
    engine.submit(request(1, [1, 5], 40, drafter="one"))
    while engine.round():
        pass
    assert sink.tokens[1] == continuation([1, 5], 40)
    assert engine.roster.serves("two"), "it is not late: it reads"
    assert not reader.works
    let.set()
    engine.submit(request(2, [2, 5], 40, drafter="two"))
    while engine.round():
        pass
    assert sink.tokens[2] == continuation([2, 5], 40)
    assert sink.ended[2].accepted > 20
    assert 1 not in reader.tokens, "freed with the next call"


def test_a_reader_that_fails_rests_and_is_told_again() -> None:
    class Failing(Judging):
        fails = 1

        def draft(self, work: DraftWork) -> DraftReply:
            if work.judging is not None and len(self.works) == 3 and self.fails:
                self.fails -= 1
                raise PortError("no")
            return super().draft(work)

    reader, failures = Failing(), []
    target, sink = HashTarget(), Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=target.block_size)
    clock = ManualClock()
    engine = Engine(
        target,
        scheduler,
        WithReaders("two", 1000),
        sink,
        clock,
        EngineConfig({"one": HashDrafter(0.6), "two": reader}, draft_deadline=60.0),
        EngineHooks(drafter_failed=lambda name, _error: failures.append(name)),
    )
    engine.submit(request(1, [1, 5], 60, drafter="one"))
    while engine.round():
        read_out(engine)
        clock.sleep(0.1)
    assert sink.tokens[1] == continuation([1, 5], 60)
    assert failures == ["two"]
    assert sum(len(work.opens) for work in reader.works) == 2, "opened again after it failed"
    assert len(reader.works) > 4


def test_a_call_that_reads_counts_before_the_late_one_behind_it() -> None:
    """Both may end while the engine looks from the one to the other."""

    class Ending(Future[DraftReply]):
        def __init__(self, looks: int) -> None:
            super().__init__()
            self.looks = looks

        def done(self) -> bool:
            self.looks -= 1
            return self.looks < 0

    class Both:
        """Implements `covey.process.worker.Worker`."""

        def submit(self, call: Callable[[DraftWork], DraftReply], work: DraftWork) -> Future[DraftReply]:
            future = Ending(work.judging is not None)
            if work.judging is not None:
                future.set_result(call(work))
                return future
            future.exception = lambda _left=None: late(future, call, work)  # type: ignore[method-assign]
            return future

        def close(self) -> None: ...

    def late(future: Ending, call: Callable[[DraftWork], DraftReply], work: DraftWork) -> None:
        if not future.looks:
            raise FutureTimeout
        future.set_result(call(work))

    drafter, active = Judging(), ActiveRequest(request(1, [1, 5], 40))
    clock, batch = ManualClock(), Batch([active], np.ones(1, np.int32), (), (), 1)
    roster = Roster(["one"], clock)
    channel = Channel("one", drafter, roster, clock, None, 0, count(1), lambda: None, lambda _name: Both())
    drafting = Drafting({"one": channel}, roster, clock, 0.1)
    none = np.zeros(1, np.int32)
    drafting.read(batch, [Judge("one", none, none + 2, 100)])
    active.emit([7, 8, 9], 0.0)
    drafting.draft(batch, Plan(none + 2, none + 1, ("one",)), lambda: None)
    for _ in range(2):
        drafting.settle()
    assert active.seen["one"] == active.num_tokens == 5


def test_a_drafter_is_told_when_the_first_of_the_rows_misses_its_objective() -> None:
    clock, told = ManualClock(), list[float]()

    class Told(HashDrafter):
        def draft(self, work: DraftWork) -> DraftReply:
            told.append(work.needed)
            return super().draft(work)

    for objectives in ((Objective(),), (Objective(), Objective(tpot=2.0), Objective(tpot=3.0))):
        told.clear()
        engine, _, _ = serving({"one": Told(0.0)}, clock, 0.5)
        for key, objective in enumerate(objectives, 1):
            engine.submit(replace(request(key, [1, 2], 12), arrival=clock.now(), objective=objective))
        engine.round()
        first = clock.now()
        clock.sleep(0.5)
        engine.round()
        if len(objectives) == 1:
            assert set(told) == {0.0}, "it has none"
            continue
        assert told[-1] == pytest.approx(first + 2.0 - clock.now())
        clock.sleep(9.0)
        engine.round()
        assert told[-1] == LEAST_NEEDED, "it is late by now"
