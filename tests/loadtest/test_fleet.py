"""Simulated replicas behind routers, and the bench that plays them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from covey_client.costs.table import CostTable
from covey_client.star.capacity import LatencyGoal, TargetLoad
from loadtest.bench import fleet as bench
from loadtest.bench.emulated_pairs import PAIRS
from loadtest.bench.fleet_planned import Checked, capacity, check
from loadtest.bench.session import QUICK, Session, Wanted
from loadtest.simulation.fleet import Fleet, play
from loadtest.simulation.routing import LeastQueue, Prefix, RoundRobin, Routing, View

LINE = tuple((rows, tokens, 0.010 + 0.0005 * tokens) for rows in (1, 64) for tokens in (1, 4000))
SERVER = TargetLoad(CostTable(verify=LINE), prompt=200, output=100, max_running=16, spread=0.5)
OBJECTIVE = LatencyGoal(ttft=2.0, tpot=0.05)
RATE = 0.7 * SERVER.finished[-1]
FLEET = Fleet(SERVER, 8, RATE, OBJECTIVE, 60.0, 10.0, prefix=0)


def played(fleet: Fleet, routing: Routing | None = None, seed: int = 1):  # type: ignore[no-untyped-def]
    return play(fleet, routing or RoundRobin(), seed)


def test_a_replica_alone_is_as_the_formula_has_it() -> None:
    point = SERVER.at(RATE)
    assert point is not None
    runs = [played(replace(FLEET, replicas=1, seconds=600.0, work=0.0), seed=seed) for seed in range(3)]
    assert np.mean([run.mean for run in runs]) == pytest.approx(point.rows, rel=0.12)
    assert all(run.broken == run.refused == 0 for run in runs)
    assert all(run.attained > 0.9 for run in runs)


def test_a_router_that_has_no_time_for_all_is_what_first_tokens_wait_for() -> None:
    asked = FLEET.rate * FLEET.replicas
    busy = played(replace(FLEET, work=2 / asked))
    assert busy.ttft[1] > 10.0
    assert played(replace(FLEET, work=2 / asked, routers=4)).ttft[1] < 2.0
    assert played(replace(FLEET, index=2 / asked, routers=4)).wait > 10.0


def test_streams_of_a_replica_that_dies_end_elsewhere() -> None:
    found = played(replace(FLEET, life=30.0, away=10.0))
    assert found.broken > 0
    assert found.refused > 0, "routers find out by a report, or by a refusal"
    assert found.unended == 0
    outage = played(replace(FLEET, outage=0.5))
    assert outage.broken > 0
    assert outage.unended == 0


def test_a_prefix_that_is_kept_need_not_be_read() -> None:
    cold = replace(FLEET, prefix=512, prefixes=64, kept=8, rate=1.0)
    blind, affine = played(cold), played(cold, Prefix(FLEET.replicas, 32))
    assert blind.hits < 0.3
    assert affine.hits > blind.hits + 0.2
    assert affine.ttft[0] < blind.ttft[0]


def view(queue: list[int], gone: tuple[int, ...] = ()) -> View:
    made = View(len(queue), random.Random(1))
    there = np.ones(len(queue), bool)
    there[list(gone)] = False
    made.told(np.array(queue), there)
    return made


def test_round_robin_takes_turns_among_those_that_are_there() -> None:
    seen = view([9, 0, 0, 9], gone=(1,))
    assert sorted(RoundRobin().choose(seen, 0) for _ in range(6)) == [0, 0, 2, 2, 3, 3]


def test_the_least_queue_is_one_of_the_least_that_is_there() -> None:
    seen = view([3, 0, 1, 1, 5], gone=(1,))
    assert {LeastQueue().choose(seen, 0) for _ in range(50)} == {2, 3}
    seen.gone(2)
    assert {LeastQueue().choose(seen, 0) for _ in range(50)} == {3}


def test_prefixes_go_where_they_have_been_while_queues_are_alike() -> None:
    routing = Prefix(4, threshold=10)
    seen = view([4, 5, 6, 7])
    assert routing.choose(seen, 7) == 0, "nobody has been sent anything"
    routing.routed(7, 3)
    assert {routing.choose(seen, 7) for _ in range(20)} == {3}
    routing.routed(7, 1)
    assert {routing.choose(seen, 7) for _ in range(50)} == {1, 3}, "the better of two that are drawn"
    assert routing.choose(seen, 8) in (0, 2), "whoever has been sent the fewest"
    uneven = view([4, 5, 6, 15])
    assert len({routing.choose(uneven, 7) for _ in range(50)}) >= 3, "the better of any two"
    routing.died(3)
    assert {routing.choose(seen, 7) for _ in range(20)} == {1}
    assert routing.choose(view([4, 5, 6, 7], gone=(1,)), 7) in (0, 2, 3)


def test_nobody_there_is_everybody() -> None:
    nobody = view([1, 1, 1], gone=(0, 1, 2))
    for routing in (RoundRobin(), LeastQueue(), Prefix(3, 10)):
        assert routing.choose(nobody, 0) in (0, 1, 2)


def test_the_planned_capacity_is_compared_where_the_share_is_crossed() -> None:
    kept = {0.8: 1.0, 0.9: 0.97, 1.0: 0.93, 1.1: 0.2}
    rows = [Checked(part, 0.02, 0.02, share, 5.0) for part, share in kept.items()]
    assert capacity(rows) == pytest.approx(1 / 0.95)
    assert capacity(rows[:2]) is None


@pytest.mark.parametrize("policy", ["off", "covey"])
def test_the_formula_is_near_the_engine_that_serves(policy: str) -> None:
    found = check(PAIRS[0], policy, 0.75, 240, seed=1)
    assert found.predicted == pytest.approx(found.simulated, rel=0.15)
    assert found.kept > 0.9


def test_the_bench_writes_and_draws_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "QUICK_SIZES", (16, 32))
    session = Session("fleet", Wanted(tmp_path / "fleet.json", QUICK, parts=("fleet",)), Console(quiet=True))
    bench.run(session)
    result = session.write()
    bench.show(result, Console(quiet=True), tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").stat().st_size > 10_000
    found = json.loads((tmp_path / "fleet.json").read_text())
    assert set(found["goodput"]) == {"0.45", "0.7"}
    for by_policy in found["goodput"].values():
        assert set(by_policy) == set(bench.ROUTING)
        assert all(0 <= part <= 1 for sizes in by_policy.values() for part in sizes.values())
    assert found["predicted_over_simulated"] is None
