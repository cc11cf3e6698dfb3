from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from covey.contracts.types import LOOKUP, Trees
from covey.kv.elastic import Pressure
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Drafted, Plan, Round, Times, pressure_of
from covey.requests.scheduler import Batch
from tests.fakes import request


def after(*drafters: str, depth: int = 2) -> Pressure:
    """After a round in which these drafted, one for each row."""
    count = len(drafters)
    rows = [ActiveRequest(request(key, [1], 9)) for key in range(count)]
    batch = Batch(rows, np.ones(count, np.int32), (), (), count)
    plan = Plan(np.full(count, depth, np.int32), np.ones(count, np.int32), drafters, ("best",) * count)
    drafted = Drafted(Trees.empty(count), np.ones(count, np.bool_))
    reply = SimpleNamespace(free_blocks=3, total_blocks=9)
    done = Round(batch, plan, drafted, drafted.trees, reply, count, Times(0.0, 0.0, 0.1, 0.0), 4, count, 0)  # type: ignore[arg-type]
    return pressure_of(done, 8)


def test_drafters_that_drafted_hold_what_they_have_and_texts_that_offered_hold_nothing() -> None:
    assert after("one", "two", "one") == Pressure(3, 9, 4, 3, 8, {"one": 2, "two": 1})
    assert after("one", LOOKUP).drafters == {"one": 1}
    assert after("one").drafting
    assert not after(LOOKUP, LOOKUP).drafting
    assert not after("one", "one", depth=0).drafting
