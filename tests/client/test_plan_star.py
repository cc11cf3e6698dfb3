"""The formula for one drafter and many targets, against a simulation of a queue that knows no formula."""

from __future__ import annotations

import heapq
import json
import random
from dataclasses import replace

import pytest

from covey_client import cli
from covey_client.star import paper
from covey_client.star.model import Star

STAR = Star(step=0.002, verify=0.028, transfer=0.004, acceptance=0.7, depth=4, plain=0.03)
GIVEN = ["--step-ms", "2", "--verify-ms", "28", "--transfer-ms", "4", "--acceptance", "0.7", "--plain-ms", "30"]


class Simulated:
    """N targets that call one drafter and come back; calls are served as they came."""

    def __init__(self, star: Star, targets: int, seed: int, spread: float = 0.0, calls: int = 4000) -> None:
        rng = random.Random(seed)
        arrivals = [(rng.random() * 0.01, target) for target in range(targets)]
        heapq.heapify(arrivals)
        free = tokens = waited = worked = 0.0
        begin = ends = 0.0
        for call in range(calls + 200):
            if call == 200:
                begin, tokens, waited, worked = free, 0.0, 0.0, 0.0
            at, target = heapq.heappop(arrivals)
            started = max(at, free)
            service = sum(star.step * rng.uniform(1 - spread, 1 + spread) for _ in range(star.depth))
            waited += started - at
            worked += service
            free = started + service
            verified = rng.uniform(1 - spread, 1 + spread) * star.verify
            heapq.heappush(arrivals, (free + star.transfer + verified, target))
            accepted = 0
            while accepted < star.depth and rng.random() < star.acceptance:
                accepted += 1
            tokens += accepted + 1
            ends = free
        self.rate = tokens / (ends - begin)
        self.wait = waited / calls
        self.load = worked / (ends - begin)


@pytest.mark.parametrize("targets", range(1, 9))
@pytest.mark.parametrize("acceptance", [0.3, 0.7, 1.0])
def test_the_formula_is_what_a_queue_of_equal_calls_does(targets: int, acceptance: float) -> None:
    star = replace(STAR, acceptance=acceptance)
    found, point = Simulated(star, targets, seed=targets), star.point(targets)
    assert point.whole == pytest.approx(found.rate, rel=0.03)
    assert point.each == pytest.approx(found.rate / targets, rel=0.03)
    assert point.load == pytest.approx(found.load, rel=0.01)
    assert point.wait == pytest.approx(found.wait, abs=0.0003)


def test_times_that_vary_cost_most_where_the_drafter_begins_to_be_full() -> None:
    short = [1 - Simulated(STAR, n, seed=1, spread=0.5).rate / STAR.point(n).whole for n in (1, STAR.full, 12)]
    assert short[1] > max(short[0], short[2])
    assert short[1] < 0.25


def test_n_full_is_the_first_without_idle_time() -> None:
    assert [STAR.point(n).idle > 0 for n in (STAR.full - 1, STAR.full)] == [True, False]
    assert Simulated(STAR, STAR.full, seed=2).load == pytest.approx(1.0, abs=0.001)
    even = replace(STAR, verify=0.028, transfer=0.004, step=0.001)  # Z is exactly eight services
    assert even.full == 9
    assert even.point(9).idle == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("plain", [0.012, 0.02, 0.03, 0.05, 0.2])
def test_n_max_is_the_last_that_is_no_slower_than_alone(plain: float) -> None:
    star = replace(STAR, plain=plain)
    faster = [n for n in range(1, 200) if star.point(n).each >= 1 / plain * (1 - 1e-9)]
    assert star.most == (faster[-1] if faster else 0)
    if star.most:
        assert Simulated(star, star.most, seed=3).rate / star.most > 0.96 / plain
    assert Simulated(star, star.most + 1, seed=3).rate / (star.most + 1) < 1.04 / plain


def test_a_drafter_that_idled_is_slower_alone_and_not_in_company() -> None:
    star = replace(STAR, cold_step=0.004)
    assert [star.point(n).step for n in (1, 2, 3)] == [0.004, 0.004, 0.002]
    assert star.point(3).whole > 3 * star.point(1).whole, "company keeps it warm"


def test_the_paper_s_own_round_speeds_follow() -> None:
    """R_q by the number of targets in StarSD's Table 1; its fourth target, which joins, is a faster one."""
    star = paper.star()
    for targets, calls in {1: 20.90, 2: 49.25, 3: 72.26, 5: 85.52, 6: 85.84}.items():
        assert star.point(targets).calls == pytest.approx(calls, rel=0.08), targets
    assert star.point(1).gap > star.cold_after > star.point(2).gap


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan-star", *GIVEN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["full"], found["most"], len(found["points"])) == (STAR.full, STAR.most, 8)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--verify-ms", "28", "--plain-ms", "30", "--acceptance", "0.7"], "--step-ms"),
        (["--step-ms", "-1", "--verify-ms", "28", "--plain-ms", "30", "--acceptance", "0.7"], "positive"),
        (["--step-ms", "1", "--verify-ms", "28", "--plain-ms", "30", "--acceptance", "1.7"], "acceptance"),
        ([*GIVEN, "--most", "0"], "most"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan-star", *flags]) == 2
    assert named in capsys.readouterr().err
