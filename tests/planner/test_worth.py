"""Selectors of single nodes in a batch: Covey's by worth and AdaServe's, over made-up curves and trees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from covey.bandits.policy import Situation
from covey.contracts.errors import SettingError
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import Objective, Rule, Sampling, Trees
from covey.planner.adaserve import AdaServe, AdaServeSelector, constants, knee
from covey.planner.build import build
from covey.planner.calibration import Calibration
from covey.planner.costs import RoundCosts
from covey.planner.expectations import Expectations
from covey.planner.worth import WorthSelector
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Drafted
from covey.requests.scheduler import Batch
from covey.trees.paths import Nodes
from covey_client.costs.table import CostTable
from tests.fakes import request

DEPTH = 4


def costs(free: int, each: float) -> CostTable:
    """A pass takes 20 ms over up to `free` tokens, and `each` more for every further one."""
    verify = [
        (rows, tokens, 0.02 + each * max(0, tokens - free)) for rows in (1, 4, 16) for tokens in (rows, free, 256)
    ]
    return CostTable("made up", "for tests", tuple(verify), (), {"draft": ((1, 1, 0.001), (16, 4, 0.002))})


def worth(free: int = 64, each: float = 0.002) -> WorthSelector:
    return WorthSelector(Expectations(DEPTH, 16, costs(free, each)), ("draft",), DEPTH)


def batch(
    objectives: list[Objective], *, now: float = 10.0, output: int = 5, rule: Rule = Rule.COUPLED, asks: str = "auto"
) -> Batch:
    rows = []
    for key, objective in enumerate(objectives):
        active = ActiveRequest(
            request(key, [1], 200, sampling=Sampling(rule=rule), objective=objective, speculation=asks)
        )
        active.first_token, active.output = 9.8, [7] * output
        rows.append(active)
    return Batch(rows, np.ones(len(rows), np.int32), (), (), len(rows), now, 0.001)


def drafted(*rows: list[float]) -> Drafted:
    """A chain for each row, of nodes as likely by themselves as listed."""
    sizes = [len(row) for row in rows]
    scores = np.concatenate([np.cumsum(np.log(row)) for row in rows]).astype(np.float32)
    trees = replace(Trees.chains([range(size) for size in sizes]), scores=scores)
    return Drafted(trees, np.ones(len(rows), np.bool_), {"draft": 0.002}, {"draft": 0.0}, ("draft",) * len(rows))


NONE = Objective()
TIGHT = Objective("interactive", math.inf, 0.03)
LOOSE = Objective("batch", math.inf, 5.0)


def test_nodes_are_verified_as_far_as_they_are_worth_their_time() -> None:
    offered = drafted(*[[0.9, 0.7, 0.5, 0.3]] * 4)
    assert worth(free=64).select(batch([NONE] * 4), offered, 4096).sizes.tolist() == [4] * 4, "they cost nothing"
    some = worth(free=4, each=0.002).select(batch([NONE] * 4), offered, 4096).sizes
    assert 4 <= some.sum() < 16
    assert worth(free=1, each=0.1).select(batch([NONE] * 4), offered, 4096).sizes.sum() == 0, "all cost too much"


@pytest.mark.parametrize("each", [0.0005, 0.002, 0.006])
def test_the_number_verified_is_the_one_of_most_tokens_a_second(each: float) -> None:
    made, offered, rng = worth(4, each), None, np.random.default_rng(1)
    offered = drafted(*[rng.uniform(0.3, 0.95, DEPTH).tolist() for _ in range(6)])
    kept = made.select(batch([NONE] * 6), offered, 4096)
    paths = np.sort(Nodes.of(offered.trees).paths(Nodes.of(offered.trees).own(offered.trees.scores)))[::-1]
    seconds = 0.002 + made._expectations.curve(6).at(6.0 + np.arange(len(paths) + 1))
    speeds = (6 + np.concatenate([[0.0], np.cumsum(paths)])) / seconds
    assert len(kept.tokens) == int(speeds.argmax())


def test_the_pass_has_room_for_no_more() -> None:
    offered = drafted(*[[0.9] * 4] * 4)
    for room in range(0, 12):
        for objective in (NONE, TIGHT):  # what rows need has no more room than what is worth its time
            assert len(worth().select(batch([objective] * 4), offered, 4 + room).tokens) <= room


def test_who_is_late_is_given_what_it_needs_and_who_is_ahead_or_hopeless_nothing_beforehand() -> None:
    offered = drafted([0.8, 0.7, 0.6, 0.5], [0.8, 0.7, 0.6, 0.5], [0.8, 0.7, 0.6, 0.5])
    dear = worth(free=3, each=0.008)
    assert dear.select(batch([NONE] * 3), offered, 4096).sizes.sum() < 3, "by worth alone hardly any"
    tight = replace(TIGHT, tpot=0.04)  # A(r) = (0.2 + a round) / 40 ms - 4: between 1.5 and 2.5
    sizes = worth(free=3, each=0.008).select(batch([tight, LOOSE, NONE]), offered, 4096).sizes
    assert sizes[0] >= 1
    assert sizes[0] > sizes[1:].max(initial=0)
    late = replace(TIGHT, tpot=1e-5)
    assert worth(free=3, each=0.008).select(batch([late, late, late]), offered, 4096).sizes.sum() < 3, "hopeless"


def test_nothing_depends_on_drawn_tokens_under_the_rejection_rule() -> None:
    likely, unlikely = drafted([0.9, 0.9], [0.1, 0.1]), drafted([0.1, 0.1], [0.9, 0.9])
    for make in (
        lambda: worth(4, 0.004),
        lambda: AdaServeSelector(AdaServe(DEPTH, 2, None, ("b1=4",)), ("draft",), DEPTH),
    ):
        kept = [
            make().select(batch([NONE, TIGHT], rule=Rule.REJECTION), each, 4096).sizes.tolist()  # type: ignore[attr-defined]
            for each in (likely, unlikely)
        ]
        assert kept[0] == kept[1]


def test_of_nodes_alike_no_more_are_verified_than_there_is_room_for() -> None:
    offered = drafted(*[[0.5, 0.5]] * 8)
    assert worth().select(batch([NONE] * 8), offered, 8 + 5).sizes.tolist() == [1] * 5 + [0] * 3
    assert worth().select(batch([NONE] * 8), offered, 8 + 11).sizes.tolist() == [2] * 3 + [1] * 5


def test_what_a_request_asks_for_is_not_dropped() -> None:
    offered = drafted([0.2] * 4, [0.2] * 4)
    for made in (worth(1, 0.1), AdaServeSelector(AdaServe(DEPTH, 1, None, ("b1=3",)), ("draft",), DEPTH)):
        assert made.select(batch([NONE] * 2, asks="fixed:4"), offered, 4096) is offered.trees  # type: ignore[attr-defined]


def test_prompts_are_read_beside_what_a_pass_reads_anyway_or_within_what_it_may_take() -> None:
    """A pass of 20 ms over up to 64 tokens, 0.5 ms for each further one."""
    made = RoundCosts(DEPTH, 64, costs(free=64, each=0.0005))
    assert made.prompt_tokens_within(16, 0.0, 0.0) == 48, "they are free"
    assert made.prompt_tokens_within(16, 32.0, 0.0) == 48, "whatever is drafted: that is chosen afterwards"
    assert made.prompt_tokens_within(16, 0.0, 0.06) == pytest.approx(128, abs=12)
    assert made.prompt_tokens_within(16, 32.0, 0.06) == pytest.approx(96, abs=12)
    assert made.prompt_tokens_within(16, 320.0, math.inf, 0.06) == pytest.approx(128, abs=12), (
        "drafts leave prompts room"
    )
    assert build(SpeculationSettings(), ("draft",)).prefill_allowance(16, 0.0, 1.0, 1.0) is None, "nothing was measured"
    line = [(rows, tokens, 0.001 * tokens) for rows in (1, 16, 64) for tokens in (rows, 4 * rows)]
    linear = RoundCosts(DEPTH, 64, CostTable("line", "for tests", tuple(line)))
    assert linear.prompt_tokens_within(16, 0.0, 0.0) == 0, "each token takes as long as any other"
    assert linear.prompt_tokens_within(16, 0.0, 0.1) == pytest.approx(84, abs=12)


def test_adaserve_serves_the_largest_need_first_within_its_budget() -> None:
    made = AdaServeSelector(AdaServe(DEPTH, 1, None, ("b1=6", "n_max=4")), ("draft",), DEPTH)
    offered = drafted([0.5, 0.5, 0.5, 0.5], [0.9, 0.9, 0.9, 0.9], [0.95, 0.95, 0.95, 0.95])
    later = replace(TIGHT, tpot=0.02)
    kept = made.select(batch([later, TIGHT, NONE]), offered, 4096)
    assert kept.sizes.tolist() == [3, 0, 0], "3 of 6 tokens are roots; at most n_max - 1 nodes by need"
    assert made.select(batch([NONE] * 3), offered, 4096).sizes.tolist() == [0, 1, 2], "then the best of all"
    wide = AdaServeSelector(AdaServe(DEPTH, 1, None, ("b1=9",)), ("draft",), DEPTH)
    assert len(wide.select(batch([later, TIGHT, NONE]), offered, 4096).tokens) == 6
    assert len(wide.select(batch([later, TIGHT, NONE]), offered, 5).tokens) == 2, "nor more than the pass has room for"


def test_adaserves_needs_end_with_what_drafts_can_bring_with_n_max_and_with_its_budget() -> None:
    """Who is late comes first, however unlikely its drafts are."""
    late, offered = replace(TIGHT, tpot=1e-3), drafted([0.95] * 4, [0.99] * 4)

    def sizes(*adaserve: str, asks: str = "auto") -> list[int]:
        made = AdaServeSelector(AdaServe(DEPTH, 1, None, adaserve), ("draft",), DEPTH)
        rows = batch([late, NONE])
        if asks != "auto":
            rows.rows[1] = batch([NONE, NONE], asks=asks).rows[1]
        found: list[int] = made.select(rows, offered, 4096).sizes.tolist()
        return found

    assert sizes("b1=6") == [4, 0], "A(r) is more than a round can bring: all that it can"
    assert sizes("b1=6", "n_max=3") == [2, 2], "its root is one of three"
    assert sizes("b1=6", "n_max=1") == [0, 4]
    assert sizes("b1=7", asks="fixed:4") == [1, 4], "what a request asks for is in the budget"


def test_adaserve_ranks_by_log_q_where_that_is_shipped() -> None:
    offered = drafted([0.9, 0.9], [0.1, 0.1])
    turned = replace(offered, trees=replace(offered.trees, log_q=np.log([0.1, 0.01, 0.9, 0.81]).astype(np.float32)))
    made = AdaServeSelector(AdaServe(DEPTH, 1, None, ("b1=4",)), ("draft",), DEPTH)
    assert made.select(batch([NONE] * 2), offered, 4096).sizes.tolist() == [2, 0]
    assert made.select(batch([NONE] * 2), turned, 4096).sizes.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("constants_of", "shapes"),
    [
        (("b1=24",), ((4, 5, 4), (8, 2, 3), (12, 1, 2), (24, 1, 1))),  # its equations without constants; b2 is b1
        (
            ("b1=120", "b2=60", "c1=2", "c2=1"),
            ((1, 6, 4), (18, 5, 4), (28, 3, 3), (38, 2, 2), (118, 1, 1), (500, 1, 1)),
        ),
    ],
)
def test_adaserves_shape_follows_its_equations(constants_of: tuple[str, ...], shapes: tuple[tuple[int, ...]]) -> None:
    made = AdaServe(6, 4, None, constants_of)
    for rows, depth, width in shapes:
        assert (made.choose(Situation(rows, 6)), made.width) == (depth, width)
    assert made.choose(Situation(1, 2)) == 2, "no deeper than there is room for"


def test_adaserves_budget_is_the_knee_of_the_costs() -> None:
    assert (AdaServe(6, 4, None, ()).budget, AdaServe(6, 4, None, ()).most) == (64, 8)
    free = costs(free=64, each=0.001)
    assert AdaServe(6, 4, free, ()).budget == knee(free) == pytest.approx(68, abs=1)
    exact = CostTable("made up", "", tuple((1, tokens, float(tokens)) for tokens in (1, 5, 9)))
    assert [knee(exact, slack) for slack in (0.5, 1.0, 4.0, 9.0, 20.0)] == [1, 1, 4, 9, 9], "as far as was measured"
    with pytest.raises(SettingError, match=r"speculation\.adaserve"):
        constants(["b3=4"])


def test_calibration_learns_how_often_what_is_said_is_true() -> None:
    """A drafter that is right half as often as it says, at the second rank a quarter."""
    rng, made = np.random.default_rng(2), Calibration(("draft",), DEPTH)
    trees = Trees(np.arange(0, 401, 2, dtype=np.int32), np.arange(400, dtype=np.int32), np.full(400, -1, np.int32))
    nodes, hidden = Nodes.of(trees), np.zeros(200, np.bool_)
    ranks = nodes.ranks()
    rows = np.zeros(200, np.int64)
    said = np.where(ranks == 0, 0.8, 0.2)
    cells = made.cells(nodes, ranks, said, rows, hidden)
    assert made.own(cells, said) == pytest.approx(said), "its word, before anything is seen"
    for _ in range(40):
        made.update(cells, rng.random(400) < said * np.where(ranks == 0, 0.5, 0.25))
    own = made.own(cells, said)
    assert own[0] == pytest.approx(0.4, abs=0.02)
    assert own[1] == pytest.approx(0.05, abs=0.01)


def test_rows_without_an_objective_wait_for_prompts_as_long_as_three_plain_rounds_take() -> None:
    """A plain pass over 16 rows takes 20 ms, and each token beyond 64 adds 0.5."""
    made = build(SpeculationSettings(policy="adaptive", max_depth=DEPTH), ("draft",), costs=costs(free=64, each=0.0005))
    assert made.prefill_allowance(16, 0.0, math.inf, math.inf) == pytest.approx(128, abs=12)
    assert made.prefill_allowance(16, 0.0, math.inf, 0.04) == pytest.approx(88, abs=12)
    assert made.prefill_allowance(0, 0.0, math.inf, math.inf) == pytest.approx(424, abs=12), (
        "or ten, where none decodes"
    )


def test_prompts_come_before_drafts_that_are_chosen_afterwards_unless_rows_need_those() -> None:
    """A plain pass over 16 rows takes 20 ms. Who must have a token in 15 needs drafts."""
    for selection, tpot, tokens in (("all", 0.025, 96), ("worth", 0.025, 128), ("worth", 0.015, 96)):
        settings = SpeculationSettings(policy="adaptive", selection=selection, max_depth=DEPTH)
        made = build(settings, ("draft",), max_rows=64, costs=costs(free=64, each=0.0005))
        assert made.prefill_allowance(16, 32.0, tpot, 0.06) == pytest.approx(tokens, abs=12)
