from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.errors import CoveyError, PortError, PortTimeout, StubDead
from covey.contracts.ports import Drafter
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import NO_FLOATS, DrafterInfo, DraftReply, DraftWork
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.planner.planner import Planner
from covey.requests.roster import FIRST_REST, LONGEST_REST
from tests.engines import finish
from tests.fakes import VOCAB, Collector, HashTarget, ManualClock, continuation, request
from tests.loop.hash_drafters import HashDrafter, read_out, serving
from tests.static_planner import StaticPlanner

Failed = Callable[[str, CoveyError], None]


def run(
    drafters: dict[str, Drafter],
    *,
    requests: int = 6,
    count: int = 30,
    depth: int = 4,
    blocks: int = 1000,
    planner: Planner | None = None,
    failed: Failed | None = None,
    **settings: object,
) -> tuple[HashTarget, Collector]:
    planner = planner or StaticPlanner(depth, 1)
    engine, target, sink = serving(drafters, planner, clock=ManualClock(), blocks=blocks, failed=failed)
    names = list(drafters)
    prompts = {key: [key, key * 3 % VOCAB, 5] for key in range(1, requests + 1)}
    for key, prompt in prompts.items():
        engine.submit(request(key, prompt, count + key, drafter=names[key % len(names)], **settings))
    finish(engine)
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


def test_a_good_drafter_saves_rounds_and_drafts_fit_a_pass() -> None:
    plain, _ = run({"one": HashDrafter(1.0)}, depth=0)
    fast, _ = run({"one": HashDrafter(1.0)}, depth=8)
    assert len(fast.works) < len(plain.works) / 3
    assert all(len(work.trees.tokens) + work.chunk.sum() <= 64 for work in fast.works), "the token budget"


def test_several_drafters_share_a_round_and_a_forgetful_one_is_told_again() -> None:
    drafters = {"a": HashDrafter(0.9, seed=1), "b": HashDrafter(0.4, forget=0.3, seed=2), "c": HashDrafter(1.0)}
    run(dict(drafters))
    assert all(drafter.works for drafter in drafters.values())
    opened = [opening.tag for work in drafters["b"].works for opening in work.opens]
    assert len(opened) > len(set(opened))


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
    slow, errors, clock = Slow(StubDead("not healthy")), list[CoveyError](), ManualClock()
    engine, _target, sink = serving(
        {"one": slow}, clock=clock, deadline=0.05, failed=lambda _name, error: errors.append(error)
    )
    engine.submit(request(1, [1, 2], 30))
    while not errors:
        engine.round()
    assert type(errors[0]) is PortTimeout
    slow.let_go(engine)
    if known:
        engine.roster.gone("one")
    finish(engine)
    assert [type(error) for error in errors] == [PortTimeout, PortError if known else StubDead]
    assert sink.tokens[1] == continuation([1, 2], 30)
    clock.sleep(FIRST_REST)
    if not known:
        assert engine.roster.serves("one"), "one death counts as one failure"


class Slow:
    """A drafter's first call takes until `release`, and then fails with `error` if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.drafter = HashDrafter(1.0)
        self.drafter.before = self._wait
        self.release, self.ended = threading.Event(), threading.Event()
        self._error = error
        self._calls = 0

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
            self.release.wait(30)

    def let_go(self, engine: Engine) -> None:
        self.release.set()
        assert self.ended.wait(30)
        read_out(engine)
        engine._drafting._deadline = 60.0  # whatever comes now is in time, however busy the machine is


def test_what_a_late_call_read_counts() -> None:
    """The catch-up took longer than the deadline; meanwhile one request went on and another ended."""
    clock, slow = ManualClock(), Slow()
    engine, _target, sink = serving({"one": slow}, clock=clock, deadline=0.05)
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
    finish(engine)
    assert sink.tokens[1] == continuation([1, 2, 3], 60)
    assert sink.tokens[3] == continuation([7, 8], 20)
    assert 2 not in slow.drafter.tokens


def test_whatever_a_drafter_raises_is_its_own_failure(caplog: pytest.LogCaptureFixture) -> None:
    clock, errors = ManualClock(), list[CoveyError]()
    broken, whole = HashDrafter(1.0), HashDrafter(1.0)

    def fail() -> None:
        raise TimeoutError("of its own") if errors else IndexError("no such row")

    broken.before = fail
    engine, _target, sink = serving(
        {"one": broken, "two": whole}, clock=clock, failed=lambda _name, error: errors.append(error)
    )
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


def test_a_drafter_that_proposes_more_than_was_asked_for_has_failed() -> None:
    """Else the pass might have no room for all its drafts, and every request in it would suffer."""

    class Eager(HashDrafter):
        def draft(self, work: DraftWork) -> DraftReply:
            return super().draft(replace(work, depth=work.depth + 60))

    errors = list[CoveyError]()
    target, _ = run({"whole": HashDrafter(1.0), "eager": Eager(1.0)}, failed=lambda _name, error: errors.append(error))
    assert str(errors[0]) == "it proposed 64 drafts for a row, 4 were asked for"
    assert max(int(work.trees.sizes.max(initial=0)) for work in target.works) == 4


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


def test_a_drafter_without_scores_drafts_beside_one_with_scores() -> None:
    """What cannot be compared is not ranked, and every array has a value for each node."""

    class Unscored(HashDrafter):
        def draft(self, work: DraftWork) -> DraftReply:
            reply = super().draft(work)
            return replace(reply, trees=replace(reply.trees, scores=NO_FLOATS))

    planner = build(SpeculationSettings(policy="tetris", max_depth=4), ("scored", "unscored"))
    target, _ = run({"scored": HashDrafter(0.8), "unscored": Unscored(0.8)}, requests=2, planner=planner)
    mixed = [work.trees for work in target.works if work.trees.sizes.tolist().count(0) < len(work.trees.sizes) > 1]
    assert mixed
    assert all(len(trees.scores) in (0, len(trees.tokens)) for trees in mixed)
