"""What each test may take, so that `make test` does not grow unseen: BUDGET, SERVED where it drives a real server, or
what its `budget` mark says.

Budgets are seconds of each of a test's phases (what it needs, itself, what it leaves) as `make test` takes them on two
idle cores. A machine may be SLACK times slower before a test fails for it. What a test's process waited for a processor
does not count, and a machine that does other work besides says nothing about a test: servers wait, too.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from covey.care.starved import times

BUDGET, SERVED = 8.0, 20.0
SLACK = 3.0
WAITED = pytest.StashKey[float]()  # seconds, until the last phase ended
CROWDED = 3.0  # processes that run or wait to, for each core; two of these tests and their servers are fewer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    own = item.get_closest_marker("budget")
    seconds = own.args[0] if own else SERVED if item.get_closest_marker("e2e") else BUDGET
    before = item.config.stash.get(WAITED, 0.0)
    waited = max(before, times(os.getpid())[1])  # it is less where a test still has others' times read
    item.config.stash[WAITED] = waited
    took = report.duration - (waited - before)
    if report.passed and took > SLACK * seconds and not item.get_closest_marker("slow") and not _crowded():
        report.outcome = "failed"
        report.longrepr = (
            f"its {report.when} took {took:.1f} s, its budget is {seconds:g} s, {SLACK:g} times that on a "
            "slow machine: make it faster, or mark it slow, or mark what it needs: @pytest.mark.budget(seconds)"
        )
    return report


def _crowded() -> bool:
    return os.getloadavg()[0] > CROWDED * len(os.sched_getaffinity(0))
