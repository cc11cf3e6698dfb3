"""Latency objectives: what a request asks for, how it is judged, and who goes first for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.contracts.errors import SettingError
from covey.contracts.objectives import Classes, judge
from covey.contracts.profile import load
from covey.contracts.types import NO_OBJECTIVE, Attainment, Objective, Progress, Request, TargetReply, TargetWork
from covey.planner.baseline import LEAST, Baseline
from covey.requests.active import ActiveRequest
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import PATIENCE, Scheduler
from covey_client.costs.table import CostTable
from loadtest import levels
from tests.engines import engine_to
from tests.fakes import Collector, HashTarget, ManualClock, continuation, request


def asks(key: int, arrival: float, objective: Objective = NO_OBJECTIVE, **settings: Any) -> Request:
    """A request that came at that time."""
    made = request(key, settings.pop("prompt", [1, 2]), **settings)
    return dataclasses.replace(made, arrival=arrival, objective=objective)


def scheduler(**settings: Any) -> Scheduler:
    usual: dict[str, Any] = {"max_running": 4, "max_waiting": 512, "token_budget": 16, "growth_tokens": 0}
    return Scheduler(**usual | settings, block_size=4)


def taken(made: Scheduler, now: float) -> list[int]:
    """The keys that one plan admits, in order."""
    before = set(made.running)
    made.admit(1000, now)
    return [key for key in made.running if key not in before]


# ---- classes ---------------------------------------------------------------------------------------------------------


def test_a_relative_class_is_a_multiple_of_the_baseline_and_unknown_before_it() -> None:
    seconds: list[float | None] = [None]
    classes = Classes(baseline=lambda: seconds[0])
    before = classes.objective("interactive", 0.0, 0.0)
    assert (before.measured, before.tpot, before.ttft) == (False, math.inf, 0.5)
    assert judge(before, 0.1, 0.1) is Attainment.UNKNOWN
    assert judge(before, 0.6, 0.1) is Attainment.MISSED, "its first token was late whatever the baseline is"
    seconds[0] = 0.02
    after = classes.objective("interactive", 0.0, 0.0)
    assert after == Objective("interactive", 0.5, pytest.approx(0.024))
    told = {(labels["slo_class"], labels["of"]): value for _, labels, value in classes.targets()}
    assert told["interactive", "tpot"] == pytest.approx(0.024)
    assert told["batch", "tpot"] == 0.15


def test_a_profile_s_classes_stand_beside_the_built_in_ones(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[slo]\nclasses = ['search:20:300', 'chat:40:800', 'slow:-:-']\n")
    classes = Classes(load(str(path)).slo.classes)
    assert classes.names == ("interactive", "chat", "batch", "search", "slow")
    assert classes.objective("search", 0.0, 0.0) == Objective("search", 0.3, 0.02)
    assert classes.objective("chat", 0.0, 0.0) == Objective("chat", 0.8, 0.04)
    assert classes.objective("batch", 0.0, 0.0) == Objective("batch", 15.0, 0.15)
    assert classes.objective("slow", 0.0, 0.0) == Objective("slow")
    (level,) = levels.parse(["search:3:20:300"])
    assert (level.tpot, level.ttft) == (0.02, 0.3), "load tests write both times in the same order"


@pytest.mark.parametrize(
    "entry", ["chat", "chat:50", "chat:0:1", "chat:50:0x", "chat:50:1x", ":1:1", "a:1:1', 'a:2:2", "custom:1:1"]
)
def test_a_profile_refuses_what_is_no_class(tmp_path: Any, entry: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f"[slo]\nclasses = ['{entry}']\n")
    with pytest.raises(SettingError, match=r"slo\.classes"):
        load(str(path))


def test_the_baseline_is_the_table_s_plain_round_of_one_row_or_is_learnt() -> None:
    assert Baseline(CostTable(plain=((1, 0.02), (4, 0.03)))).seconds == 0.02
    verify = ((1, 1, 0.01), (1, 3, 0.02), (4, 4, 0.05))
    assert Baseline(CostTable(verify=verify, overhead=((1, 0.001),))).seconds == pytest.approx(0.011)
    assert Baseline(CostTable()).seconds is None
    learnt = Baseline()
    for _ in range(LEAST):
        assert learnt.seconds is None
        learnt.update(_round(rows=2))
        learnt.update(_round(rows=1, depth=3))
        learnt.update(_round(rows=1, drafting=3))
        learnt.update(_round(rows=1))
    assert learnt.seconds == pytest.approx(0.4)


def _round(rows: int, depth: int = 0, drafting: int = 0) -> RoundRecord:
    """A round of so many decoding rows that took 0.4 s, with drafts for the next one at its end."""
    plan = SimpleNamespace(depth=np.full(rows, depth, np.int32), next_depth=np.full(rows, drafting, np.int32))
    times = dict.fromkeys(("plan_seconds", "draft_seconds", "verify_seconds", "commit_seconds"), 0.1)
    found = SimpleNamespace(rows=rows, decoding=rows, emitted=rows, waiting=0, plan=plan, **times)
    return cast("RoundRecord", found)


# ---- one request -----------------------------------------------------------------------------------------------------


def running(objective: Objective, output: int, first: float, **settings: Any) -> ActiveRequest:
    active = ActiveRequest(asks(1, 1.0, objective, **settings))
    active.emit([7], first)
    active.output += [7] * (output - 1)
    return active


def test_hopeless_is_what_no_speed_could_save() -> None:
    objective = Objective("", 0.5, 0.1)
    assert not ActiveRequest(asks(1, 1.0, objective)).hopeless(1.5, 0.0)
    assert ActiveRequest(asks(1, 1.0, objective)).hopeless(1.5, 0.01)
    assert running(objective, 2, first=1.6).hopeless(1.6, 0.0), "its first token was late"
    active = running(objective, 2, first=1.2, max_tokens=11)  # all by 2.2, nine of them are to come
    assert not active.hopeless(1.2, 0.09)
    assert active.hopeless(1.7, 0.09)
    assert not active.hopeless(1.7, 0.05)
    assert not running(Objective(), 2, 1.2, max_tokens=1).hopeless(1e9, 1.0)


# ---- who goes first --------------------------------------------------------------------------------------------------

OBJECTIVES = st.one_of(
    st.just(NO_OBJECTIVE),
    st.builds(Objective, st.just("x"), st.one_of(st.just(math.inf), st.floats(0.01, 60)), st.floats(0.01, 1)),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), st.floats(0, 100), OBJECTIVES), min_size=1, max_size=20), st.floats(0, 1))
def test_priority_comes_first_then_what_is_due(rows: list[tuple[int, float, Objective]], late: float) -> None:
    made = scheduler(max_running=64, token_budget=64)
    last = max(arrival for _, arrival, _ in rows)
    for key, (priority, arrival, objective) in enumerate(rows):
        made.submit(asks(key, arrival, objective, priority=priority), arrival)
    now = last + late

    def due(key: int) -> float:
        _, arrival, objective = rows[key]
        deadline = arrival + objective.ttft
        if deadline == math.inf:
            return arrival + PATIENCE
        return deadline if now <= deadline else max(deadline, arrival + PATIENCE)

    expected = sorted(range(len(rows)), key=lambda key: (-rows[key][0], due(key), rows[key][1], key))
    assert taken(made, now) == expected


def reading(decoding: Objective, prompt: Objective, *, emitted: int, now: float = 1.0) -> Scheduler:
    """A request that has emitted tokens since 0.5 s, rounds of 20 ms that brought it two each, and a prompt of 400 that
    came when the first was emitted."""
    made = scheduler(token_budget=512)
    for _ in range(20):
        made.pace.update(0.02, 1, 2, overhead=0.005, drafts=2)
    made.submit(asks(1, 0.0, decoding, prompt=[1], max_tokens=300), 0.0)
    made.admit(1000, 0.0)
    [active] = made.running.values()
    active.opened = True
    active.emit([7] * emitted, 0.5)
    active.num_cached_tokens = active.num_tokens - 1
    made.submit(asks(2, 0.5, prompt, prompt=[1] * 400), now)
    return made


@pytest.mark.parametrize(
    ("emitted", "limit"),
    [
        (26, 0.9 * 0.04),  # just in time: 25 tokens of 20 ms have come after the first one
        (34, 0.9 * 0.04 + 8 * 0.02 / 8),  # eight tokens ahead
        (22, 0.9 * 0.04 - 4 * 0.02 / 8),  # four tokens behind
    ],
)
def test_prompts_are_read_as_fast_as_rows_that_decode_can_bear(emitted: int, limit: float) -> None:
    made, asked = reading(Objective("chat", 1.0, 0.02), NO_OBJECTIVE, emitted=emitted), []

    def allowance(*question: float) -> int:
        asked.append(question)
        return 24

    batch = made.admit(1000, 1.0, allowance)
    assert batch.chunk.tolist() == [1, 24]
    assert asked == [(1, 2.0, 0.02, pytest.approx(limit - 0.005))], (
        "rows, their drafts, the least time per token that they ask for, and what a pass may take"
    )
    assert made.admit(1000, 1.0, lambda *_: 0).chunk.tolist() == [1, 1], "a little is always read"
    assert made.admit(1000, 1.0, lambda *_: None).chunk.tolist() == [1, 400], "nothing is known"


def test_prompts_whose_first_token_is_due_are_read_in_time_whatever_others_can_bear() -> None:
    made = reading(Objective("chat", 1.0, 0.02), Objective("chat", 0.71, 0.02), emitted=26)
    assert made.admit(1000, 1.0, lambda *_: 24).chunk.tolist() == [1, 40], "ten rounds until 1.21 s"
    assert made.admit(1000, 1.2, lambda *_: 24).chunk.tolist() == [1, 400], "now or never"
    assert made.admit(1000, 1.3, lambda *_: 24).chunk.tolist() == [1, 24], "never"


@pytest.mark.parametrize(
    "decoding", [NO_OBJECTIVE, Objective("slow", 1.0, math.inf), Objective("late", 0.2, 0.02)], ids=lambda it: it.label
)
def test_only_objectives_that_can_be_met_bound_a_round(decoding: Objective) -> None:
    """Else the planner says how many prompt tokens a round may compute, also when a prompt has waited for long."""
    made, asked = reading(decoding, NO_OBJECTIVE, emitted=26), []
    for now in (1.0, 11.0):
        assert made.admit(1000, now, lambda *question: asked.append(question[3]) or 24).chunk.tolist() == [1, 24]
    assert asked == [math.inf, math.inf]


def test_the_one_with_most_time_is_preempted() -> None:
    made = scheduler()
    objectives = (Objective("chat", 1.0, 0.05), Objective("batch", 30.0, 0.15), NO_OBJECTIVE)
    for key, objective in enumerate(objectives):
        made.submit(asks(key, 0.0, objective, max_tokens=400), 0.0)
    made.admit(1000, 0.0)
    for active in made.running.values():
        active.emit([7] * 100, 0.5)  # those with objectives are ahead: by 5 s and by 15
    assert made.make_room(0.6) is None
    assert [active.key for active in made.waiting] == [1]
    assert made.make_room(0.6) is None, "its blocks come free with the next pass"
    assert len(made.waiting) == 1
    made.drop((1,))
    assert made.make_room(0.6) is None
    assert [active.key for active in made.waiting] == [2, 1]
    made.drop((2,))
    alone = made.make_room(0.6)
    assert alone is not None
    assert alone.key == 0


# ---- under load, in virtual time -------------------------------------------------------------------------------------


class TimedTarget(HashTarget):
    """A pass takes 10 ms, and 1 ms for each token of a prompt."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(blocks=10_000)
        self._clock = clock

    def step(self, work: TargetWork) -> TargetReply:
        self._clock.time += 0.01 + 0.001 * float(work.chunk.sum() - len(work.chunk))
        return super().step(work)


def served(requests: list[Request]) -> dict[int, tuple[float, float]]:
    """When each request's first and last token came, where four of them run at a time."""
    clock, left = ManualClock(), sorted(requests, key=lambda each: each.arrival)
    first: dict[int, float] = {}
    last: dict[int, float] = {}

    class Timed(Collector):
        def publish(self, batch: Sequence[Progress]) -> None:
            super().publish(batch)
            for item in batch:
                first.setdefault(item.key, clock.time)
                last[item.key] = clock.time

    sink = Timed()
    engine = engine_to(sink, TimedTarget(clock), clock=clock, max_running=4, max_waiting=512, token_budget=32)
    while left or not engine.scheduler.idle:
        while left and left[0].arrival <= clock.time:
            engine.submit(left.pop(0))
        if not engine.round() and left:
            clock.time = left[0].arrival
    assert {each.key: sink.tokens[each.key] for each in requests} == {
        each.key: continuation(each.prompt.tolist(), each.max_tokens) for each in requests
    }
    return {key: (first[key], last[key]) for key in first}


def attained(requests: list[Request], objective: Objective) -> float:
    """The share of those from key 1000 on that had their first token and the others in time."""
    times, met = served(requests), []
    for each in requests:
        if each.key >= 1000:
            first, last = times[each.key]
            tpot = (last - first) / (each.max_tokens - 1)
            met.append(judge(objective, first - each.arrival, tpot) is Attainment.MET)
    return sum(met) / len(met)


def test_the_hurried_meet_behind_a_backlog_what_first_come_first_served_misses() -> None:
    objective = Objective("chat", 0.6, 0.05)

    def load(told: Objective) -> list[Request]:
        backlog = [asks(key, 0.0, prompt=[key] * 20, max_tokens=20) for key in range(1, 60)]
        return backlog + [asks(1000 + key, 0.1 * key, told, prompt=[key] * 5, max_tokens=8) for key in range(40)]

    blind, told = attained(load(NO_OBJECTIVE), objective), attained(load(objective), objective)
    assert blind <= 0.3
    assert told >= 0.95


def test_requests_that_come_too_late_do_not_drag_the_others_with_them() -> None:
    """More than can be served: in the order of deadlines alone most would be a little late."""
    objective = Objective("chat", 0.3, 0.1)
    rows = [asks(1000 + key, 0.02 * key, objective, prompt=[key % 90] * 5, max_tokens=8) for key in range(400)]
    blind = [dataclasses.replace(each, objective=NO_OBJECTIVE) for each in rows]
    assert attained(rows, objective) >= 3 * attained(blind, objective)
