"""What selections ask of rows, gathered as arrays, is what each row says of itself, and is asked of the right batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.contracts.types import Objective
from covey.planner.standing import Standing
from tests.planner.test_worth import batch


@settings(deadline=None)
@given(st.integers(1, 100), st.floats(0.001, 1.0), st.floats(0.0, 10.0), st.floats(0.0, 1.0))
def test_a_request_needs_one_token_of_the_round_that_ends_at_its_deadline(
    output: int, tpot: float, elapsed: float, round_seconds: float
) -> None:
    found = batch([Objective("", math.inf, tpot)])
    (active,) = found.rows
    active.output, active.first_token = [7] * output, 2.0

    def needed(now: float) -> float:
        return float(Standing.of(replace(found, now=now)).needs(round_seconds)[0])

    assert needed(active.deadline - round_seconds) == pytest.approx(1.0, abs=1e-6)
    need = needed(2.0 + elapsed)
    if need > -output:  # so many more, and the mean is the objective
        mean = (elapsed + round_seconds) / (output - 1 + need) if output - 1 + need > 1e-9 else tpot
        assert mean == pytest.approx(tpot, rel=1e-3)
