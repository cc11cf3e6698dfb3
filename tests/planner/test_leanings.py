"""Requests whose drafts are accepted more or less often than others' are told apart, and rounds follow them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covey.bandits.leaning import Leaning
from covey.bandits.policy import Outcome, Situation, Trials
from covey.planner.acceptance import IDLE, Acceptance
from covey.planner.expectations import Expectations

DEPTH = 3


def chain(rng: np.random.Generator, rate: float) -> tuple[int, int]:
    """How many drafts of a chain were tried, and accepted."""
    right = int((rng.random(DEPTH) < rate).cumprod().sum())
    return min(DEPTH, right + 1), right


def counted(accepted: Acceptance, leaning: Leaning | None, tried: int, right: int) -> None:
    rows = () if leaning is None else ((leaning, tried, right),)
    accepted.update([int(at < tried) for at in range(DEPTH)], [int(at < right) for at in range(DEPTH)], rows)


def of_many(told: bool) -> tuple[Acceptance, dict[float, list[Leaning]], int]:
    """Requests of two kinds in turn, 40 rounds each. Returns how often all that was known was forgotten, too."""
    rng, accepted, forgot = np.random.default_rng(3), Acceptance(DEPTH), 0
    leanings: dict[float, list[Leaning]] = {0.8: [], 0.3: []}
    for number in range(40):
        rate, leaning = (0.8, 0.3)[number % 2], Leaning()
        leanings[rate].append(leaning)
        for _ in range(40):
            counted(accepted, leaning if told else None, *chain(rng, rate))
            forgot += accepted._age < IDLE - 1000
    return accepted, leanings, forgot


def test_the_tokens_of_a_batch_are_those_of_its_requests() -> None:
    accepted, leanings, _ = of_many(told=True)
    for rate, own in leanings.items():
        true = 1 + sum(rate**depth for depth in range(1, DEPTH + 1))
        found = np.mean([accepted.together([leaning.shift], 1)[-1] for leaning in own[5:]])
        assert found == pytest.approx(true, rel=0.12)
    mixed = [leanings[0.8][-1].shift, leanings[0.3][-1].shift]
    apart = [accepted.together([shift], 1) for shift in mixed]
    assert accepted.together(mixed, 2) == pytest.approx(np.sum(apart, axis=0))
    assert accepted.together([0.0, 0.0], 2) == [2 * each for each in accepted.expected()[0]], "a new one is as all are"


def test_another_request_is_no_change_of_the_drafter() -> None:
    """An alarm forgets what is known; afterwards a thousand rounds count as young."""
    assert of_many(told=True)[2] < of_many(told=False)[2] / 2


def test_expectations_follow_shifts_and_teach_them() -> None:
    expectations, leaning = Expectations(DEPTH, 4), Leaning()
    situation = Situation(1, DEPTH, shares=(("draft", 1),))
    trials = Trials([1, 1, 0], [1, 0, 0], 3, 3, [(leaning, 2, 1)])
    for _ in range(30):
        expectations.update(situation, 3, Outcome(0.01, 2, trials={("draft", False): trials}))
    assert -1.0 < leaning.shift < 0.0, "at first more was expected of it, as of all"
    tokens = [expectations.of(replace(situation, shifts=((shift,),))).tokens[-1] for shift in (-2.0, 0.0, 2.0)]
    assert tokens == sorted(tokens)
    assert tokens[2] > 1.3 * tokens[0]
