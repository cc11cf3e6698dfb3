"""The benches of latency objectives, small: their keys, and that what they serve is judged as it should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.contracts import profile
from covey_client.costs.table import CostTable
from loadtest.bench.__main__ import main
from loadtest.bench.slo_serving import CHAT, SUMMARY, SYSTEMS, URGENT, asked, measured, objectives, play

PAIR = "emulated-70b-4x80g"
MIX = {URGENT: 0.6, CHAT: 0.2, SUMMARY: 0.2}


def system(name: str) -> object:
    return next(each for each in SYSTEMS if each.name == name)


def table() -> CostTable:
    return CostTable.load(profile.costs_file("emulated-70b-4x80g"))


def test_the_bench_writes_its_keys(tmp_path: Path) -> None:
    out = tmp_path / "slo.json"
    assert main(["slo", "--quick", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    for device in ("70B", "32B"):
        found = result["emulated"][device]
        [systems] = found["points"].values()
        assert set(systems) == {"off", "adaserve", "adaptive"}
        assert 0 <= systems["adaptive"]["attainment"] <= 1


def test_a_run_can_be_repeated_and_an_idle_server_meets_every_objective() -> None:
    load = asked([2.0 * at for at in range(6)], MIX, 3)
    for name in ("adaptive", "adaserve"):
        one, other = (play(PAIR, system(name), load, 3) for _ in range(2))  # type: ignore[arg-type]
        assert one == other
        assert one.met == one.requests == 6


def test_who_is_not_served_has_not_met_its_objective() -> None:
    load = asked([0.0] * 8, MIX, 3)
    point = play(PAIR, system("off"), load, 3, limit=0.5)  # type: ignore[arg-type]
    assert point.met < point.requests == 8
    assert sum(of for _, of in point.by_class.values()) == 8


def test_the_planner_is_not_given_the_devices_own_table() -> None:
    curves = measured(table(), 1)
    assert curves == measured(table(), 1)
    assert curves != measured(table(), 2)
    assert not set(curves.verify) & set(table().verify)


def test_an_urgent_request_has_so_many_times_the_unloaded_time() -> None:
    found = objectives(profile.load(PAIR), table())
    assert found[URGENT].tpot == pytest.approx(1.2 * 0.0207, rel=0.01)
    assert found[CHAT].tpot == 0.05


def test_an_unknown_part_is_named_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slo", "--part", "70b", "--json", str(tmp_path / "out.json")]) == 1
    assert "--part: got '70b', allowed: 70B" in capsys.readouterr().err
