"""How many targets and drafters a load takes, by the formula and by the command."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from covey_client import cli
from covey_client.costs.table import CostTable
from covey_client.star.capacity import LatencyGoal, TargetLoad, plan
from loadtest.bench import loads
from loadtest.bench.emulated_pairs import PAIRS, requests
from loadtest.bench.emulated_serving import play

LINE = tuple((rows, tokens, 0.010 + 0.001 * tokens) for rows in (1, 64) for tokens in (1, 1000))  # seconds
DRAFTS = {"small": tuple((rows, depth, 0.002 * depth) for rows in (1, 64) for depth in (1, 8))}
TABLE = CostTable(name="made up", verify=LINE, draft=DRAFTS)
PLAIN = TargetLoad(TABLE, prompt=100, output=50, max_running=4, spread=0.0)
DRAFTING = replace(PLAIN, max_running=8, acceptance=0.8, drafter="small")


def test_what_finishes_is_the_rounds_and_the_prompts() -> None:
    """Two rows: a round of 12 ms brings two tokens, and a prompt of 100 makes passes 100 ms longer."""
    assert PLAIN.finished[1] == pytest.approx(1 / (50 * 0.012 / 2 + 0.1))
    assert PLAIN.rounds[1] == (0, pytest.approx(0.012), 1.0)


def test_rows_are_those_that_memory_holds() -> None:
    """A row holds its prompt and half its answer; where lengths differ, those found running are rather long ones."""
    assert replace(PLAIN, max_running=64, kv_tokens=1250).rows == 10
    assert replace(PLAIN, max_running=8, kv_tokens=1250).rows == 8
    assert replace(PLAIN, max_running=64, kv_tokens=1250, spread=1.0).rows == int(1250 / (100 + 25 * math.e))


def test_depth_falls_as_rows_grow() -> None:
    depths = [depth for depth, _, _ in replace(DRAFTING, max_running=64).rounds]
    assert depths[0] > depths[-1]
    assert all(here >= there for here, there in itertools.pairwise(depths))


def test_states_are_those_of_the_queue_they_are_drawn_from() -> None:
    """Against a walk over arrivals and ends: what the formula says of time per token and of the first one's."""
    rate, rng = 0.75 * PLAIN.finished[-1], np.random.default_rng(1)
    point = PLAIN.at(rate)
    assert point is not None
    there = served = waited = span = 0.0
    for _ in range(200_000):
        ends = PLAIN.finished[int(min(there, PLAIN.rows)) - 1] if there else 0.0
        passed = rng.exponential(1 / (rate + ends))
        span += passed
        served += passed * min(there, PLAIN.rows)
        waited += passed * max(0.0, there - PLAIN.rows)
        there += 1 if rng.random() < rate / (rate + ends) else -1
    assert point.rows == pytest.approx(served / span, rel=0.03)
    assert point.tpot == pytest.approx(served / span / rate / PLAIN.output, rel=0.03)
    first = 1.5 * PLAIN.rounds[round(point.rows) - 1][1] + 0.1  # half a round, a whole one and the prompt
    assert point.ttft == pytest.approx(waited / span / rate + first, rel=0.06)
    assert PLAIN.at(PLAIN.finished[-1]) is None


@pytest.mark.parametrize("policy", ["off", "covey"])
def test_the_formula_is_near_the_engine_that_serves(policy: str) -> None:
    """At three quarters of the planned rate, over emulated devices in virtual time. The formula knows the mean lengths
    of what is asked, and nothing of the engine's own time, which is none here."""
    pair, count, seed = PAIRS[0], 240, 1
    lengths = requests(pair, count, seed)
    target = TargetLoad(
        replace(pair.table, overhead=()),
        fmean(each.prompt for each in lengths),
        fmean(each.output for each in lengths),
        pair.profile.scheduler.max_running,
        kv_tokens=pair.blocks * pair.profile.target.block_size,
        spread=pair.dataset.output_spread,
        acceptance=pair.right(),
        drafter=pair.drafters[0] if policy == "covey" else "",
    )
    alone = target.at(1e-6)
    assert alone is not None
    objective = LatencyGoal(ttft=2.0, tpot=1.8 * alone.tpot)
    most = target.most(objective)
    assert most is not None
    point = target.at(0.75 * most.rate)
    assert point is not None
    served = play(pair, policy, loads.poisson(0.75 * most.rate, count, seed), lengths, seed)
    inner = slice(count // 6, -(count // 6))  # the server fills and empties
    first, last = np.array(served.firsts)[inner], np.array(served.latencies)[inner]
    tokens = np.array([length.output - 1 for length in lengths])[inner]
    assert point.tpot == pytest.approx((last - first).sum() / tokens.sum(), rel=0.15)
    assert np.mean((first <= objective.ttft) & (last - first <= objective.tpot * tokens)) > 0.9


def test_the_most_is_where_the_objective_is_met_and_more_misses_it() -> None:
    objective = LatencyGoal(ttft=1.0, tpot=0.030)
    most = DRAFTING.most(objective)
    assert most is not None
    assert most.meets(objective)
    more = DRAFTING.at(1.01 * most.rate)
    assert more is None or not more.meets(objective)
    assert DRAFTING.most(LatencyGoal(tpot=0.001)) is None


def test_a_plan_has_no_target_too_many() -> None:
    objective = LatencyGoal(ttft=2.0, tpot=0.040)
    found = plan(DRAFTING, 20.0, objective)
    assert found is not None
    assert found.each.meets(objective)
    fewer = DRAFTING.at(20.0 / (found.targets - 1))
    assert fewer is None or not fewer.meets(objective)
    assert found.drafters == 0


def test_drafters_elsewhere_are_shared_until_a_target_more_would_be_needed() -> None:
    apart = replace(DRAFTING, sharing=8, transfer=0.001)
    objective = LatencyGoal(ttft=2.0, tpot=0.040)
    found = plan(apart, 20.0, objective)
    assert found is not None
    alone = plan(replace(apart, sharing=1), 20.0, objective)
    assert alone is not None
    assert found.targets == alone.targets
    assert found.drafters == math.ceil(found.targets / found.sharing) < alone.drafters
    beside = plan(DRAFTING, 20.0, objective)
    assert beside is not None
    assert beside.targets <= alone.targets, "messages take time"


@pytest.fixture
def costs(tmp_path: Path) -> str:
    TABLE.save(tmp_path / "costs.json")
    return str(tmp_path / "costs.json")


LOAD = ["--rate", "20", "--prompt", "100", "--output", "50", "--tpot-ms", "40", "--ttft-ms", "2000"]


def test_the_command(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", costs, *LOAD, "--spread", "0", "--max-running", "8"]
    assert cli.main([*given, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    found = plan(replace(PLAIN, max_running=8), 20.0, LatencyGoal(2.0, 0.040))
    assert found is not None
    assert (plain["targets"], plain["drafters"]) == (found.targets, 0)
    assert plain["each"]["rows"] == pytest.approx(found.each.rows)
    assert cli.main([*given, "--acceptance", "0.8", "--share", "8", "--transfer-ms", "1"]) == 0
    printed = capsys.readouterr().out
    apart = plan(replace(DRAFTING, sharing=8, transfer=0.001), 20.0, LatencyGoal(2.0, 0.040))
    assert apart is not None
    assert f"targets {apart.targets}, drafters {apart.drafters} ({apart.sharing} targets each)" in printed
    assert printed.splitlines()[1].split()[0] == str(apart.targets - 1)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--rate", "0"], "rate"),
        (["--rate", "nan"], "rate"),
        (["--tpot-ms", "1"], "tpot-ms"),
        (["--acceptance", "2"], "acceptance"),
        (["--share", "2"], "acceptance"),
        (["--acceptance", "0.5", "--drafter", "large"], "large"),
        (["--prompt", "0"], "prompt"),
        (["--spread", "9"], "spread"),
    ],
)
def test_wrong_flags_are_named(costs: str, flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", costs, *LOAD, *flags]) == 2
    assert named in capsys.readouterr().err


def test_what_is_no_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "own.toml").write_text("[target]\n")
    for path in (tmp_path / "other.json", tmp_path / "own.toml", tmp_path / "nowhere.json"):
        assert cli.main(["plan", str(path), *LOAD]) == 2
        assert capsys.readouterr().err.startswith(f"covey: {path} is no cost table (")
