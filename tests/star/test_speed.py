"""What a level of a draft takes, as it was measured."""

from __future__ import annotations

import pytest

from covey.star.speed import FORGETS, MARGIN, MOST, Speed


def test_a_level_s_time_is_the_draft_s_by_its_levels_and_the_newest_counts_a_little() -> None:
    speed = Speed()
    assert speed.seconds(4, 8) == 0.0, "nothing is known"
    assert speed.depth(4, 0.001) == MOST
    speed.update(1, 4, 0.008)
    assert speed.step(1) == pytest.approx(0.002)
    speed.update(1, 2, 0.008)
    assert speed.step(1) == pytest.approx(0.002 + FORGETS * 0.002)
    speed.update(1, 0, 9.0)
    speed.update(0, 3, 9.0)
    assert speed.step(1) == pytest.approx(0.002 + FORGETS * 0.002), "calls that drafted nothing say nothing"


def test_what_was_not_met_is_like_the_nearest_that_was_and_between_two_like_the_wider() -> None:
    speed = Speed()
    speed.update(1, 1, 0.001)
    speed.update(4, 1, 0.004)
    assert [speed.step(beams) for beams in (1, 2, 4, 100)] == [0.001, 0.004, 0.004, 0.004]


def test_as_deep_as_there_is_time_for_with_a_margin() -> None:
    speed = Speed()
    speed.update(1, 1, 0.01)
    assert speed.depth(1, 5.5 * MARGIN * 0.01) == 5
    assert speed.depth(1, -1.0) == 1
    assert speed.depth(1, 1e308) == speed.depth(1, float("inf")) == MOST
