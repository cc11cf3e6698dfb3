"""What plans, learns or observes may fail at any time: every text comes out right all the same, the part is set aside
and named once in the log and in a metric, and the rest goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from covey.contracts.errors import PortError
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import Objective
from covey.kv.elastic import Thresholds
from covey.loop.memory import Memory
from covey.planner.adaptive import Adaptive
from covey.planner.build import build
from covey.planner.round_planner import PlannerTotals, RoundPlanner
from covey.process.guard import Guard
from covey.requests.pace import Pace
from covey.requests.rounds import RoundRecord
from tests.fakes import continuation, request
from tests.loop.test_memory import Server
from tests.planner.test_asked_deeper import COSTS, NAMES
from tests.planner.test_round_planner import Serving
from tests.static_planner import StaticPlanner
from tests.tritonio.adapters import load
from tests.tritonio.test_slo_metrics import Counted

STUMBLES = [
    *((RoundPlanner, method, "planner") for method in ("plan", "select", "learn", "meanwhile", "prefill_allowance")),
    (Adaptive, "overhear", "planner"),  # between two rounds
    (Pace, "update", "pace"),
]
LENGTH, COUNT = 48, 12
OBJECTIVES = (Objective(), Objective("interactive", 0.5, 0.02))


class Bug(Exception):
    """What nobody foresaw."""


def stumble(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, after: int = 3) -> list[str]:
    """Have a method raise from its call number `after` on; returns a list of these calls."""
    real, calls, raised = getattr(owner, method), list[str](), list[str]()

    def stumbling(*given: Any, **named: Any) -> Any:
        calls.append(method)
        if len(calls) > after:
            raised.append(method)
            raise Bug(method)
        return real(*given, **named)

    monkeypatch.setattr(owner, method, stumbling)
    return raised


def settings() -> SpeculationSettings:
    return SpeculationSettings(
        policy="adaptive", max_depth=4, selection="worth", drafter_policy="ucb-be", drafters=NAMES, width=2
    )


def planner() -> RoundPlanner:
    return build(settings(), NAMES, max_rows=8, costs=COSTS)


def serve(serving: Serving) -> None:
    """Requests of all kinds; every text must be the target's own."""
    kinds = ("auto", "auto", "fixed:3", "off")
    for key in range(COUNT):
        named = NAMES[1] if key % 5 == 4 else ""
        kind, objective = kinds[key % 4] if key < COUNT // 2 else "auto", OBJECTIVES[key % 2]
        wanted = request(key, [key, 7], LENGTH, speculation=kind, drafter=named, objective=objective)
        if key == COUNT // 2:
            serving.run()  # from here on there are rounds in which nobody asks for a depth
        serving.engine.submit(wanted)
        serving.run(2)
    serving.run()
    for key in range(COUNT):
        assert serving.sink.tokens[key] == continuation([key, 7], LENGTH), key


def named_once(caplog: pytest.LogCaptureFixture, part: str) -> bool:
    said = [record for record in caplog.records if record.name == "covey.guard"]
    return len(said) == 1 and said[0].getMessage().startswith(f"{part} failed") and said[0].exc_info is not None


@pytest.mark.parametrize(("owner", "method", "part"), STUMBLES, ids=lambda each: getattr(each, "__name__", each))
def test_a_round_goes_on_whatever_plans_or_learns_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: type, method: str, part: str
) -> None:
    raised, guard = stumble(monkeypatch, owner, method), Guard()
    serve(Serving(planner(), names=NAMES, guard=guard))
    assert raised == [method], "it was asked once more, and never again"
    assert guard.aside == (part,)
    assert list(guard.figures()) == [("covey_set_aside_total", {"part": part}, 1.0)]
    assert named_once(caplog, part)


def test_without_a_planner_every_row_decodes_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    stumble(monkeypatch, Adaptive, "choose", after=0)
    serving = Serving(planner(), names=NAMES, guard=Guard())
    serve(serving)
    assert not any(len(work.trees.tokens) for work in serving.target.works)


def test_an_observer_that_raises_observes_no_more(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[RoundRecord] = []

    def observe(record: RoundRecord) -> None:
        seen.append(record)
        if len(seen) == 4:
            raise Bug

    guard = Guard()
    serving = Serving(planner(), names=NAMES, guard=guard, observe=observe)
    serve(serving)
    assert len(seen) == 4
    assert guard.aside == ("observer",)
    assert named_once(caplog, "observer")
    assert any(len(work.trees.tokens) for work in serving.target.works[10:]), "planning goes on"


def test_who_is_told_of_a_drafter_s_failures_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __init__(self, *_given: Any) -> None:
            self.right = 1

        def info(self) -> Any:
            raise PortError("gone")

        draft = info

    def told(_name: str, _error: Exception) -> None:
        raise Bug

    guard = Guard()
    serve(Serving(StaticPlanner(2), drafter=Broken, guard=guard, drafter_failed=told, names=NAMES))  # type: ignore[arg-type]
    assert guard.aside == ("drafter failures",)
    assert named_once(caplog, "drafter failures")


@pytest.mark.parametrize("stumbles", [(Memory, "tick"), (Thresholds, "expands"), (Thresholds, "note")])
def test_memory_stays_as_it_is_when_its_policy_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stumbles: tuple[type, str]
) -> None:
    guard = Guard()
    server = Server(Thresholds(0.1, 3), depth=2, guard=guard)
    server.submit(20, tokens=60)
    server.run(0.2)
    stumble(monkeypatch, *stumbles)
    server.submit(20, tokens=60)
    while len(server.sink.ended) < 40:
        assert server.engine.round()
        server.house.check()
    assert server.sink.tokens == server.expected
    assert guard.aside == ("memory",)
    assert server.engine._pause is None, "nobody looks after memory while nothing runs"
    assert named_once(caplog, "memory")


def test_figures_that_raise_leave_the_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    _, fake = load(monkeypatch, "unary")
    from covey.tritonio.metrics import Metrics

    counted, made, guard = Counted(), planner(), Guard()
    fake.MetricFamily.side_effect = counted.family
    metrics = Metrics("covey", guard=guard)
    raised = stumble(monkeypatch, PlannerTotals, "figures", after=0)
    metrics.follow(made.figures)
    serve(Serving(made, names=NAMES, guard=guard, observe=metrics.round))
    with caplog.at_level(logging.ERROR):
        metrics._flush()
        metrics._flush()
    metrics.stop()
    assert raised == ["figures"]
    assert counted.totals["covey_generation_tokens_total", "", ""] == COUNT * LENGTH
    assert counted.totals["covey_set_aside_total", "", ""] == 1
    assert "RoundPlanner.figures failed" in caplog.text
