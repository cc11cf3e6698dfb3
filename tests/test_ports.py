"""What comes between an engine and its ports, for all of them in one place."""

from __future__ import annotations

from collections.abc import Callable

from covey.engine import Engine
from covey.errors import PortError
from covey.ports import Ports, Reply
from covey.scheduler import Scheduler
from tests.fakes import Collector, HashTarget, ManualClock, continuation, request
from tests.static_planner import StaticPlanner
from tests.test_drafting import HashDrafter


def serve(ports: Ports) -> Collector:
    sink = Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=4)
    drafters = {"draft": ports.drafter("draft")}
    engine = Engine(
        ports.target(), scheduler, StaticPlanner(3, 1), sink, ManualClock(), drafters=drafters, draft_deadline=60.0
    )
    engine.submit(request(1, [1, 2, 3], 12))
    while engine.round():
        pass
    return sink


def test_nothing_comes_between_where_nothing_is_given() -> None:
    target, drafter = HashTarget(), HashDrafter(1.0)
    ports = Ports(lambda _model: target, lambda _model: drafter)
    assert ports.target() is target
    assert ports.drafter("draft") is drafter


def test_every_call_of_every_port_can_be_counted_and_failed() -> None:
    calls: list[str] = []

    def faulty(model: str, call: Callable[[], Reply]) -> Reply:
        calls.append(model)
        if model == "draft":
            raise PortError("lost")
        return call()

    target, drafter = HashTarget(), HashDrafter(1.0)
    plain = serve(Ports(lambda _model: target, lambda _model: drafter))
    assert drafter.works
    assert plain.tokens[1] == continuation([1, 2, 3], 12)
    fresh, unasked = HashTarget(), HashDrafter(1.0)
    sink = serve(Ports(lambda _model: fresh, lambda _model: unasked, faulty))
    assert sink.tokens[1] == plain.tokens[1], "a drafter that fails costs speed alone"
    assert not unasked.works
    assert calls.count("target") == 1 + len(fresh.works), "its facts, and every pass"
    assert "draft" in calls
