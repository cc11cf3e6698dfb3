"""What selections ask of rows, gathered as arrays, is what each row says of itself, and is asked of the right batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.types import Objective
from covey.planner.standing import Standing
from tests.planner.test_worth import LOOSE, NONE, TIGHT, batch, drafted, worth


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
                assert need == pytest.approx(active.needs(found.now, 0.03))
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
