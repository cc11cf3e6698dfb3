"""The bench `star`: its simulation is held against the formula, and its keys are there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from covey.star.queue import QueueLimits
from covey_client.star.model import Star
from loadtest.bench import star, star_servers
from loadtest.bench.session import Session, Wanted
from loadtest.simulation.star import StarTarget, play

DEVICE = StarTarget(verify=0.028, transfer=0.002, acceptance=0.7, depth=4)
STEP = 0.002


def flat(_rows: int, _gap: float) -> float:
    return STEP


@pytest.mark.parametrize("targets", [1, 3, 5, 8])
def test_one_call_at_a_time_the_queue_does_what_the_formula_says(targets: int) -> None:
    played = play([DEVICE] * targets, flat, QueueLimits(rows=1), np.random.default_rng(targets), 60.0)
    point = Star(STEP, DEVICE.verify, DEVICE.transfer, DEVICE.acceptance, DEVICE.depth, plain=1.0).point(targets)
    assert played.rate == pytest.approx(point.whole, rel=0.1)
    assert played.idle / played.calls == pytest.approx(point.gap, abs=0.003)
    assert max(played.rounds) - min(played.rounds) <= 0.05 * max(played.rounds)


def test_joined_rows_bring_more_where_the_drafter_is_full() -> None:
    rates = [
        play([DEVICE] * 8, flat, limits, np.random.default_rng(1), 60.0).rate
        for limits in (QueueLimits(rows=1), QueueLimits())
    ]
    assert rates[1] > 1.5 * rates[0]


def test_a_greedy_target_does_not_starve_a_modest_one() -> None:
    """Five send calls eight times as long; the sixth gets its rounds all the same."""
    greedy = StarTarget(0.010, 0.001, 0.7, depth=16)
    modest = StarTarget(0.010, 0.001, 0.7, depth=2)
    played = play([*[greedy] * 5, modest], flat, QueueLimits(rows=1), np.random.default_rng(2), 60.0)
    assert played.rounds[5] > 1.2 * max(played.rounds[:5])
    alone = play([modest], flat, QueueLimits(rows=1), np.random.default_rng(2), 60.0)
    assert played.rounds[5] < alone.rounds[0]


def test_the_emulated_part_has_the_keys_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "star.json"
    session = Session("star", Wanted(out=out, size="quick", parts=("emulated",)), Console(quiet=True))
    star.run(session)
    result = session.write()
    star.show(result, Console(quiet=True), tmp_path / "star.png")
    found = json.loads(out.read_text())
    assert len(found["measured_over_model"]) == 8
    assert all(0.85 < ratio < 1.1 for ratio in found["measured_over_model"])
    assert found["batched_over_fifo"] > 1.3
    assert found["jain_fairness"] >= 0.95
    assert found["jain_fairness_heavy"] >= 0.95
    assert found["scaling_n3"] is None, "not measured"
    assert (tmp_path / "star.png").stat().st_size > 1000


def test_what_one_target_s_times_predict() -> None:
    before = {"calls_total": 10.0, "levels_total": 80.0, "service_seconds_total": 1.0}
    after = {"calls_total": 110.0, "levels_total": 880.0, "service_seconds_total": 2.0}
    found = star_servers.seen(before, after, rate=100.0, tokens=400)
    assert (found.depth, found.step) == (8, pytest.approx(0.00125))
    assert found.away == pytest.approx(0.04 - 0.01)
    measured = star_servers.StarServerRates({"1": [100.0], "3": [280.0], "local": [125.0]}, {"3": [0.95]})
    summary = measured.summary()
    assert (summary["scaling_n3"], summary["predicted_n3"], summary["remote_over_local"]) == (2.8, 0.95, 0.8)
