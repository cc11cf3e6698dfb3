"""What selections ask of rows, gathered as arrays, is what each row says of itself, and is asked of the right batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.contracts.types import Objective
from covey.planner.standing import Standing
from covey.requests.active import ActiveRequest
from tests.planner.test_worth import LOOSE, NONE, TIGHT, batch, drafted, worth


def needs(active: ActiveRequest, now: float, round_seconds: float) -> float:
    """AdaServe's A(r), as the paper has it, of a request that has had its first token."""
    assert active.first_token is not None
    return (now - active.first_token + round_seconds) / active.request.objective.tpot - (len(active.output) - 1)


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


def test_needs_and_hopes_are_those_of_each_row() -> None:
    rng, seen = np.random.default_rng(4), set()
    for _ in range(50):
        tpots = rng.choice([math.inf, 0.005, 0.02, 0.04, 0.2], 8).tolist()
        found = batch([Objective("chat", float(rng.choice([0.1, 60.0])), tpot) for tpot in tpots])
        found = replace(found, decoding=6, fastest=float(rng.choice([0.001, 0.03])))
        for active in found.rows:
            active.output = [7] * int(rng.integers(1, 190))
            active.first_token = None if rng.random() < 0.2 else float(rng.uniform(0.0, 10.0))
            if active.first_token is not None and rng.random() < 0.3 and active.request.objective.tpot < math.inf:
                # As late as it may be for its last token to be in time, or hardly later.
                last = found.now + active.room * found.fastest + float(rng.choice([-1e-6, 1e-6]))
                active.first_token = last - active.request.objective.tpot * (active.request.max_tokens - 1)
        standing = Standing.of(found)
        timed = [row for row in range(6) if tpots[row] < math.inf]
        assert standing.timed.tolist() == timed
        for row, need, hopeless in zip(timed, standing.needs(0.03).tolist(), standing.hopeless.tolist()):
            active = found.rows[row]
            if active.first_token is None:
                assert need <= 0.0, "it waits for its first token, not for its next"
            else:
                assert need == pytest.approx(needs(active, found.now, 0.03))
                assert hopeless == active.hopeless(found.now, found.fastest)
                seen.add(hopeless)
    assert seen == {True, False}


def test_what_was_prepared_for_another_batch_is_not_used() -> None:
    offered, made = drafted(*[[0.8, 0.7, 0.6, 0.5]] * 3), worth(free=3, each=0.008)
    late = batch([replace(TIGHT, tpot=0.04), LOOSE, NONE])
    alone = worth(free=3, each=0.008).select(late, offered, 4096).sizes.tolist()
    made.prepare(batch([NONE] * 3))
    assert made.select(late, offered, 4096).sizes.tolist() == alone
    assert alone != worth(free=3, each=0.008).select(batch([NONE] * 3), offered, 4096).sizes.tolist()
    made.prepare(late)
    assert made.select(late, offered, 4096).sizes.tolist() == alone
