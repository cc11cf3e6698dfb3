"""What a change of depth costs, and which rounds are like those that follow them."""

from __future__ import annotations

import pytest

from covey.planner.change_cost import ENOUGH, MOST, SETTLING, SLIGHT, ChangeCost


def measured(first: float, second: float = 1.0, pairs: int = 60) -> ChangeCost:
    """After so many changes whose first and second rounds took these shares of what was predicted."""
    changes = ChangeCost()
    for pair in range(pairs):
        depth = 1 + pair % 2
        changes.seen(3 - depth, depth, first)
        changes.seen(depth, depth, second)
    return changes


def test_a_change_is_dear_until_it_was_seen_to_be_none() -> None:
    assert measured(1.0, pairs=ENOUGH - 1).dear(1, 2)
    cheap = measured(1.0, pairs=ENOUGH)
    assert not cheap.dear(1, 2)
    assert cheap.seen(1, 2, 1.0), "its round teaches"
    assert cheap.dear(0, 2), "to begin drafting always is"
    assert not cheap.dear(2, 2)
    assert measured(1.0 + 2 * SLIGHT).dear(1, 2)


def test_the_price_is_of_the_kind_of_change_and_without_the_models_error() -> None:
    changes = measured(1.4 * 1.3, 1.4)
    assert changes.price(1, 2) == pytest.approx(0.3, abs=0.01)
    assert changes.price(0, 2) == changes.price(2, 2) == 0.0
    assert measured(0.8).price(1, 2) == 0.0


def test_where_every_round_changes_that_is_what_rounds_are_like() -> None:
    changes = measured(1.5)
    usual = [changes.seen(1 + count % 2, 2 - count % 2, 1.5) for count in range(SETTLING + 3)]
    assert usual == [False] * SETTLING + [True] * 3
    assert changes.seen(2, 2, 1.0)
    assert not changes.seen(2, 1, 1.5), "one that goes on begins the count anew"


def test_one_round_counts_for_no_more_than_a_round() -> None:
    assert measured(50.0).price(1, 2) <= MOST
    assert measured(50.0).price(1, 2) == pytest.approx(MOST, abs=0.01)


def test_beginning_to_draft_says_nothing_of_other_changes() -> None:
    changes = ChangeCost()
    for _ in range(2 * ENOUGH):
        for before, depth in ((0, 2), (2, 2), (2, 0), (0, 0)):
            changes.seen(before, depth, 1.0)
    assert changes.dear(1, 2), "none of those was seen"
