"""What benches are made of: medians, loops, what is asked, derived profiles, and how minutes are kept."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from covey import prompts
from covey.contracts import profile
from loadtest.bench import workload
from loadtest.bench.derive import derive
from loadtest.bench.session import Session, Wanted
from loadtest.bench.statistics import Spread, loops, percentile, ratios


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([]) is None
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 1)
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0, 5)


def test_ratios_are_paired_so_that_drift_cancels() -> None:
    slow_then_fast = [10.0, 100.0]
    assert ratios([20.0, 200.0], slow_then_fast) == [2.0, 2.0]
    assert ratios([20.0, 200.0, 1.0], [*slow_then_fast, 0.0]) == [2.0, 2.0]
    assert ratios([], []) == []


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.99, 4), (1.0, 4), (0.25, 1)])
def test_percentile_is_a_value_of_the_sample(share: float, expected: float) -> None:
    assert percentile([4, 2, 1, 3], share) == expected
    assert percentile([], share) is None


def test_loops_are_seen_and_other_text_is_not() -> None:
    text = list(range(100))
    assert not loops(text)
    assert not loops([*text, *text[:31]])
    assert loops([*text, *text[:32]])
    assert loops([7] * 33)
    assert not loops([7] * 32)
    assert loops([1, 2, 3] * 12)


def test_mixed_requests_are_the_seeds_and_cover_all_domains() -> None:
    asks = workload.mixed(64, tokens=16, seed=3)
    assert asks == workload.mixed(64, tokens=16, seed=3)
    assert asks != workload.mixed(64, tokens=16, seed=4)
    assert {ask.max_tokens for ask in asks} == {16}
    assert {ask.domain for ask in asks} == set(prompts.DOMAINS)


def test_an_order_is_its_seeds_own_and_nobody_always_follows_the_same() -> None:
    names = list("abcdefg")
    orders = [workload.shuffled(names, 1, repetition) for repetition in range(30)]
    assert orders == [workload.shuffled(names, 1, repetition) for repetition in range(30)]
    assert all(sorted(order) == names for order in orders)
    before_b = {order[order.index("b") - 1] for order in orders if order[0] != "b"}
    assert before_b == set(names) - {"b"}


def test_a_derived_profile_differs_where_it_was_told_to(tmp_path: Path) -> None:
    usual = profile.load(profile.DEFAULT_PROFILE)
    path = derive(
        usual, tmp_path / "wide.toml", models=("target", "adaptive"), speculation={"width": 3, "drafters": []}
    )
    found = profile.load(str(path))
    assert found.name == "wide"
    assert found.models == ("target", "adaptive")
    assert (found.speculation.width, found.speculation.drafters) == (3, ())
    assert (found.target, found.scheduler, found.limits) == (usual.target, usual.scheduler, usual.limits)


def session(minutes: float) -> Session:
    return Session("none", Wanted(Path("unused.json"), minutes=minutes), Console(file=io.StringIO()))


def test_steps_have_a_line_each_and_the_longest_says_when_time_is_up() -> None:
    made, late = session(60.0), session(0.0)
    assert list(made.steps(["a", "b", "c"])) == ["a", "b", "c"]
    assert not made.out_of_time()
    assert late.out_of_time()
    assert isinstance(made.console.file, io.StringIO)
    assert [line[0] for line in made.console.file.getvalue().splitlines()] == ["a", "b", "c"]
