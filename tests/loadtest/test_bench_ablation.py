"""Which parts of the policy are taken away, and that they come back."""

from __future__ import annotations

import pytest

from loadtest.bench.ablation import PARTS, Case, Measured, cases, seconds, without
from loadtest.bench.changes import UP


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_gone_and_comes_back(part: str) -> None:
    before = [owner.__dict__[name] for owner, name, _ in PARTS[part]]
    with without(part):
        for (owner, name, other), own in zip(PARTS[part], before):
            assert owner.__dict__[name] is other is not own
    assert [owner.__dict__[name] for owner, name, _ in PARTS[part]] == before


@pytest.mark.parametrize("part", ["alarm", "residuals"])
def test_a_run_is_the_same_again_and_another_without_a_part(part: str) -> None:
    case = Case("drift", UP, "4")
    whole = seconds(case, "", 1, quick=True)
    assert seconds(case, part, 1, quick=True) != whole == seconds(case, "", 1, quick=True)


def test_ratios_are_of_the_same_seed_over_all_cases() -> None:
    measured, (one, other) = Measured(), cases(True, ())
    for at, taken in enumerate((1.0, 2.0)):
        for case in (one, other):
            measured.add(case, "", at, taken)
            measured.add(case, "alarm", at, taken * (1.1 if case is one else 1.0))
    measured.add(one, "haste", 2, 1.0)
    found = measured.summary()["parts"]
    assert found["alarm"]["gain"]["serving"]["ratio"] == pytest.approx(1.1)
    assert found["alarm"]["gain"]["drift"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    assert found["haste"]["gain"] == {}, "not yet run with it"
