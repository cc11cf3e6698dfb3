"""A test that takes longer than it may fails, and says what to do; one that is slow or says what it needs does not."""

from __future__ import annotations

from pathlib import Path

from tests.inner import outcomes

TESTS = """
import time
import pytest
from tests import budget

budget.BUDGET = 0.1
budget.CROWDED = {crowded}

@pytest.fixture
def late():
    time.sleep(0.4)

def test_quick(): pass
def test_long(): time.sleep(0.4)
def test_of_late(late): pass
@pytest.mark.slow
def test_slow(): time.sleep(0.4)
@pytest.mark.e2e
def test_served(): time.sleep(0.4)
@pytest.mark.budget(10)
def test_allowed(): time.sleep(0.4)
def test_broken(): assert time.sleep(0.4)
def test_that_reads_the_times_of_others(request):
    request.config.stash[budget.WAITED] = 60.0  # as if this process had waited so long before it
"""


def test_who_takes_longer_than_its_budget_fails(tmp_path: Path) -> None:
    found, said = outcomes(tmp_path, TESTS.format(crowded="1e9"), "tests.budget")
    assert found >= {("test_quick", "PASSED"), ("test_slow", "PASSED"), ("test_allowed", "PASSED")}, said
    assert found >= {("test_served", "PASSED"), ("test_that_reads_the_times_of_others", "PASSED")}, said
    assert found >= {("test_long", "FAILED"), ("test_of_late", "ERROR"), ("test_broken", "FAILED")}, said
    assert "its call took" in said
    assert "its setup took" in said


def test_a_machine_that_does_other_work_says_nothing(tmp_path: Path) -> None:
    found, said = outcomes(tmp_path, TESTS.format(crowded="-1.0"), "tests.budget")
    assert found >= {("test_long", "PASSED"), ("test_of_late", "PASSED"), ("test_broken", "FAILED")}, said
