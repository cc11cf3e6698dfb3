"""The planner in the engine: what a policy is asked and told, which rounds teach, what rows do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.bandits.policy import Forgetful, Outcome, Reason, Situation
from covey.contracts.errors import PortError
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import DraftReply, DraftWork, Offer, Rule, Sampling, TargetReply, TargetWork, Trees
from covey.loop.configuration import EngineHooks
from covey.planner.build import build
from covey.planner.expectations import Expectations
from covey.planner.round_planner import RoundPlanner
from covey.planner.selection import best
from covey.planner.switching import SwitchCosts
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.scheduler import Batch
from tests.engines import engine_to
from tests.fakes import VOCAB, Collector, HashTarget, ManualClock, continuation, next_token, request
from tests.loop.hash_drafters import TextDrafter
from tests.static_planner import StaticPlanner


class Listed(Forgetful):
    """Plays a given depth and writes down all it hears."""

    listens = True

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.asked: list[Situation] = []
        self.told: list[tuple[Situation, int, Outcome]] = []
        self.overheard: list[tuple[Situation, int, Outcome]] = []
        self.reason = Reason("listed", (0.1, 0.2))

    def choose(self, situation: Situation) -> int:
        self.asked.append(situation)
        return min(self.depth, situation.ceiling)

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        self.told.append((situation, depth, outcome))

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        self.overheard.append((situation, depth, outcome))


class PrefixDrafter(TextDrafter):
    """The first `right` drafts of each row are right, the others wrong. Reading more than five tokens takes time."""

    def __init__(self, clock: ManualClock, right: int) -> None:
        super().__init__("prefix", clock=clock)
        self.right = right

    def guess(self, text: list[int], place: int) -> tuple[int, float]:
        token = next_token(text)
        return (token if place < self.right else (token + 1) % VOCAB), math.exp(-0.1)

    def spent(self, work: DraftWork) -> tuple[float, float]:
        lag = int(np.diff(work.offsets).max(initial=0))
        return 0.001 * lag if lag > 5 else 0.0, 0.002


class SlowTarget(HashTarget):
    """Takes ten milliseconds a pass."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def step(self, work: TargetWork) -> TargetReply:
        self.clock.sleep(0.01)
        return super().step(work)


class Serving:
    """An engine with a planner over fakes."""

    def __init__(
        self,
        planner: RoundPlanner | StaticPlanner,
        right: int = 2,
        budget: int = 64,
        drafter: Callable[[ManualClock], PrefixDrafter] | None = None,
        names: tuple[str, ...] = ("first", "second"),
        **hooks: Any,
    ) -> None:
        clock = ManualClock()
        make = drafter or (lambda clock: PrefixDrafter(clock, right))
        self.drafters = (make(clock), make(clock))
        self.target, self.sink, self.planner = SlowTarget(clock), Collector(), planner
        drafters, limits = dict(zip(names, self.drafters)), {"token_budget": budget, "growth_tokens": 16}
        hooked = EngineHooks(**hooks)
        self.engine = engine_to(self.sink, self.target, planner, drafters, clock=clock, hooks=hooked, **limits)

    def submit(self, count: int, tokens: int, **settings: Any) -> None:
        """Submit so many requests, each with a prompt of its own."""
        for key in range(count):
            self.engine.submit(request(key, [1, 2, 3 + key], tokens, **settings))

    def run(self, rounds: int = 1000) -> None:
        for _ in range(rounds):
            if not self.engine.round():
                return


def planner(policy: Listed, max_depth: int = 4, **settings: object) -> RoundPlanner:
    return RoundPlanner(policy, max_depth=max_depth, **settings)  # type: ignore[arg-type]


def test_a_policy_hears_of_plain_rounds_alone_and_exactly() -> None:
    policy = Listed(3)
    made = planner(policy)
    serving = Serving(made)
    serving.submit(2, 25)
    serving.run()
    for key in range(2):
        assert serving.sink.tokens[key] == continuation([1, 2, 3 + key], 25)
    assert len(policy.told) < len(policy.asked) + 1
    for situation, depth, outcome in policy.told:
        assert situation.rows == 2
        assert situation.shares == (("first", 2),)
        if depth == 3 and outcome.verified == 8:
            assert outcome.trials["first", False].tried == [2, 2, 2, 0]
            assert outcome.trials["first", False].accepted == [2, 2, 0, 0]
            assert outcome.tokens == 6
            assert outcome.draft_seconds == pytest.approx(0.002)
    logged = [each for each in made.decisions.latest() if each.depth == 3 and each.tokens == 6]
    assert logged
    assert {each.drafts for each in logged} == {6}
    assert policy.asked[0].previous == 0
    assert {situation.previous for situation in policy.asked[1:-2]} == {3}


def test_rounds_with_prefill_are_only_overheard() -> None:
    policy = Listed(2)
    serving = Serving(planner(policy))
    serving.submit(1, 30)
    serving.run(3)
    before = len(policy.told)
    serving.engine.submit(request(1, [4] * 20, 30))
    assert policy.overheard == []
    serving.run(1)
    assert len(policy.told) == before
    (situation, depth, outcome) = policy.overheard[0]
    assert (situation.prefill, depth, outcome.verified) == (20, 2, 3), "prompts are not counted among what is verified"
    assert outcome.trials["first", False].tried == [1, 1, 0, 0]
    serving.run(1)
    assert len(policy.told) == before + 1
    assert [entry.learnt for entry in serving.planner.decisions.latest()][-2:] == [False, True]  # type: ignore[union-attr]


@pytest.mark.parametrize("teaches", [False, True])
def test_expectations_learn_what_the_policy_learns_unless_it_teaches_them(
    teaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, noted = Listed(2), Expectations(4, 8)
    taught = list[tuple[Situation, int, Outcome]]()
    for method in ("update", "overhear"):
        monkeypatch.setattr(noted, method, lambda *lesson: taught.append(lesson))
    policy.teaches = teaches
    serving = Serving(planner(policy, expectations=noted))
    serving.submit(1, 30)
    serving.run(3)
    serving.engine.submit(request(1, [4] * 20, 30))
    serving.run()
    assert policy.told
    assert policy.overheard
    assert len(taught) == (0 if teaches else len(policy.told) + len(policy.overheard))


def test_a_policy_knows_how_many_rows_wait_for_their_prompts() -> None:
    """Both prompts at first, of which one pass holds only the first; then the second."""
    policy = Listed(0)
    serving = Serving(planner(policy), budget=8)
    serving.engine.submit(request(0, [1, 2], 30))
    serving.run(2)
    for key in (1, 2):
        serving.engine.submit(request(key, [3 + key] * 14, 30))
    serving.run(8)
    joining = [situation.joining for situation in policy.asked]
    assert joining[0] == 0
    assert [number for at, number in enumerate(joining) if not at or number != joining[at - 1]] == [0, 2, 1, 0]


def test_offers_are_told_what_time_is_worth_while_others_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows emit three times as many tokens in a second as two."""
    made = build(SpeculationSettings(), ("first",))
    monkeypatch.setattr(type(made._expectations), "measured", True)
    monkeypatch.setattr(made._expectations, "speed", lambda rows: {2: 100.0, 8: 300.0}[rows])
    values = list[float]()
    monkeypatch.setattr(made._offers, "taken", lambda plan, *given: values.append(given[-1]) or plan)
    for joining in (0, 6):
        rows = replace(batch(2), joining=joining)
        for active in rows.rows:
            active.offer = Offer(1, [9], [0.9])
        made.plan(rows, Roster(("first",), ManualClock()), 64)
    assert values == [1.0, 3.0]


def test_rows_with_a_depth_of_their_own_keep_it_and_are_overheard() -> None:
    policy = Listed(4)
    serving = Serving(planner(policy))
    serving.engine.submit(request(0, [1, 2, 3], 30, speculation="off"))
    serving.engine.submit(request(1, [1, 2, 4], 30, speculation="fixed:1", drafter="second"))
    serving.engine.submit(request(2, [1, 2, 5], 30))
    serving.run(2)
    assert serving.target.works[-1].trees.sizes.tolist() == [0, 1, 4]
    situation = policy.asked[-1]
    assert (situation.rows, situation.shares) == (3, (("first", 1),)), "whom the policy decides for"
    assert (situation.lag, list(situation.lags())) == (4, [("first", 1, 4)])
    assert situation.drafts == (1, 2, 3, 4, 5)
    serving.run(1)
    assert policy.told == []
    situation, depth, outcome = policy.overheard[-1]
    assert (situation.rows, depth, outcome.verified) == (3, 4, 8)
    assert outcome.calls is not None
    assert {name: call.steps for name, call in outcome.calls.items()} == {"first": [1, 1, 1, 1], "second": [1, 0, 0, 0]}
    assert outcome.trials["first", False].accepted == [1, 1, 0, 0]
    assert (outcome.trials["second", False].tried, outcome.trials["second", False].accepted) == (
        [1, 0, 0, 0],
        [1, 0, 0, 0],
    )


def test_rows_that_draw_at_random_are_a_kind_of_their_own_and_each_request_leans_as_it_does() -> None:
    policy = Listed(2)
    serving = Serving(planner(policy, expectations=Expectations(4, 8)), right=1)
    for key, temperature in enumerate((0.0, 1.0, 0.0)):
        serving.engine.submit(request(key, [1, 2, 3 + key], 30, sampling=Sampling(temperature)))
    serving.run(6)
    situation, _, outcome = policy.told[-1]
    assert (situation.shares, situation.sampled) == ((("first", 3),), (1,))
    assert situation.kinds() == [(("first", False), 2), (("first", True), 1)]
    assert {random: trials.tried[0] for (_, random), trials in outcome.trials.items()} == {False: 2, True: 1}
    first, second, third = (active.leaning.shift for active in serving.engine.scheduler.running.values())
    assert first * second, "one of two drafts is right, which is not what was expected"
    serving.run(1)
    assert policy.asked[-1].shifts == ((first, third), (second,))


class Sparing(PrefixDrafter):
    """Proposes `most` tokens a row, whatever it is asked for, or fails."""

    def __init__(self, clock: ManualClock, most: int) -> None:
        super().__init__(clock, most)
        self.most, self.fails = most, False

    def draft(self, work: DraftWork) -> DraftReply:
        if self.fails:
            raise PortError("gone")
        return super().draft(replace(work, depth=np.minimum(work.depth, self.most)))


def test_a_drafter_that_never_has_anything_is_left_alone() -> None:
    made = build(SpeculationSettings(max_depth=4, drafters=("first",)), ("first",))
    serving = Serving(made, drafter=lambda clock: Sparing(clock, 0))
    serving.submit(4, 150)
    serving.run(140)
    assert sum(entry.depth > 0 for entry in made.decisions.latest(80)) <= 8


def test_depth_is_clipped_to_room_and_budget() -> None:
    serving = Serving(planner(Listed(4)), budget=16)
    for key in range(4):
        serving.engine.submit(request(key, [1, 2, key], 3 if key == 0 else 30))
    serving.run(2)
    assert serving.target.works[-1].trees.sizes.tolist() == [1, 3, 3, 3]


def test_lag_is_what_the_drafter_has_missed_and_its_catch_up_refines_c_switch() -> None:
    policy, costs = Listed(0), SwitchCosts()
    serving = Serving(planner(policy, switch_costs=costs))
    serving.submit(1, 100)
    policy.depth = 1
    serving.run(2)
    policy.depth = 0
    serving.run(30)
    assert policy.asked[-1].lag >= 30
    cost = costs.of("first")
    known = cost(30, 1)
    policy.depth = 2
    serving.run(1)
    assert policy.asked[-1].previous == 0
    assert policy.told[-1][2].catch_up_seconds >= 0.03
    assert cost(30, 1) != known
    assert cost(32, 1) == pytest.approx(policy.told[-1][2].catch_up_seconds, rel=0.2)


@pytest.mark.parametrize("policy", ["adaptive", "nightjar", "fixed:3"])
def test_while_no_drafter_can_be_asked_nothing_else_is_chosen_or_counted(policy: str) -> None:
    made = build(SpeculationSettings(policy=policy, max_depth=4, drafters=("first",)), ("first",))
    serving = Serving(made, drafter=lambda clock: Sparing(clock, 2), names=("first",))
    serving.submit(2, 300)
    serving.run(20)
    serving.drafters[0].fails = True  # type: ignore[attr-defined]
    while serving.engine.roster.serves("first"):
        serving.run(1)
    serving.run(12)  # of .5 s that it rests
    assert not serving.engine.roster.serves("first")
    latest = made.decisions.latest(11)
    assert [entry.depth for entry in latest] == [0] * 11
    if policy != "fixed:3":
        assert {(entry.why, entry.capped) for entry in latest} == {("no drafter", "")}
    serving.drafters[0].fails = False  # type: ignore[attr-defined]
    serving.engine._clock.sleep(1.0)
    serving.run(100)
    assert any(entry.depth for entry in made.decisions.latest(100)), "it is asked again"


def test_rows_of_a_drafter_that_rests_decode_plainly_beside_the_others() -> None:
    policy = Listed(2)
    serving = Serving(planner(policy), drafter=lambda clock: Sparing(clock, 2))
    serving.engine.submit(request(0, [1, 2, 3], 90))
    serving.engine.submit(request(1, [1, 2, 4], 90, drafter="second"))
    serving.drafters[1].fails = True  # type: ignore[attr-defined]
    serving.run(6)
    assert serving.target.works[-1].trees.sizes.tolist() == [2, 0]
    assert policy.asked[-1].ceiling > 0
    assert policy.asked[-1].drafts == (0, 1, 2, 3, 4), "of the first row alone"


def test_decisions_explain_themselves() -> None:
    serving = Serving(planner(Listed(1), max_depth=1))
    serving.submit(1, 10)
    serving.run()
    log = serving.planner.decisions  # type: ignore[union-attr]
    entry = log.latest()[-1]
    assert "(listed, capped by max_tokens)" in entry.line(), "the last token needs no draft"
    assert "0:100/-" in entry.line()
    assert ">1:200/" in next(entry.line() for entry in log.latest() if entry.depth == 1)
    assert entry.plain()["predicted"] == [0.1, 0.2]
    assert entry.plain()["observed"][0] is None
    assert len(log.latest(2)) == 2
    assert log.latest(0) == []


def batch(count: int, rule: Rule = Rule.COUPLED, **settings: object) -> Batch:
    rows = [ActiveRequest(request(key, [1], 9, sampling=Sampling(rule=rule), **settings)) for key in range(count)]
    return Batch(rows, np.ones(count, np.int32), (), (), count)


def chains(*scores: list[float]) -> Trees:
    trees = Trees.chains([range(len(row)) for row in scores])
    flat = [score for row in scores for score in row]
    return replace(trees, tokens=np.arange(len(flat), dtype=np.int32), scores=np.array(flat, np.float32))


def test_ranking_keeps_the_most_likely_paths_of_the_batch() -> None:
    trees = chains([-0.1, -0.2, -0.3], [-0.15, -2.0, -3.0])
    assert best(batch(2), trees, 6, [0.5] * 3) is trees
    assert best(batch(2), trees, 4, [0.5] * 3).tokens.tolist() == [0, 1, 2, 3]
    assert best(batch(2), trees, 2, [0.5] * 3).sizes.tolist() == [1, 1]


def test_tetris_drafts_deeper_than_it_verifies() -> None:
    made = build(SpeculationSettings(policy="tetris", max_depth=4, drafters=("first",)), ("first",))
    serving = Serving(made, names=("first",))
    serving.submit(2, 30)
    serving.run(6)
    drafted, verified = made.decisions.latest()[-1].depth, serving.target.works[-1].trees.sizes
    assert drafted == 4
    assert int(verified.sum()) == 4, "two a row"


def test_ranking_keeps_trees_connected() -> None:
    tree = Trees(
        np.array([0, 5], np.int32),
        np.arange(5, dtype=np.int32),
        np.array([-1, -1, 0, 1, 3], np.int32),
        np.array([-2.0, -0.5, -3.0, -0.5, -0.5], np.float32),
    )
    kept = best(batch(1), tree, 3, [0.5] * 3)
    assert kept.tokens.tolist() == [1, 3, 4]
    assert kept.parents.tolist() == [-1, 0, 1]


def test_under_the_rejection_rule_ranking_does_not_see_what_was_drawn() -> None:
    one, other = chains([-0.1, -0.2], [-5.0, -9.0]), chains([-5.0, -9.0], [-0.1, -0.2])
    kept = [best(batch(2, Rule.REJECTION), trees, 2, [0.9, 0.5]).tokens.tolist() for trees in (one, other)]
    assert kept[0] == kept[1] == [0, 2]


def test_ranking_leaves_rows_alone_that_asked_for_a_depth() -> None:
    trees = chains([-9.0, -9.0], [-0.1, -0.2])
    asked = batch(2)
    asked.rows[0] = batch(1, speculation="fixed:2").rows[0]
    assert best(asked, trees, 1, [0.5]).sizes.tolist() == [2, 1]
