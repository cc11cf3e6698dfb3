"""What reading beside rounds is charged: all of its time on a shared device, little beside idle processors."""

import random
from collections.abc import Callable

import pytest

from covey.planner.drafters.interference import Interference

PASS, DRAFT = 0.006, 0.004
USUAL = PASS + DRAFT


def after(rounds: int, lost: Callable[[float], float], *, noise: float = 0.1, read: float = 0.003) -> float:
    """The price after so many rounds, half of which read beside the pass and lose so much by what they read."""
    rng, interference, due = random.Random(1), Interference(), 0.0
    for _ in range(rounds):
        ended, due = due, rng.choice((0.0, read))
        beside = min(due, PASS)
        late = max(0.0, ended - PASS)  # of what began a round ago
        whole = USUAL * (1.0 + noise * rng.gauss(0.0, 1.0)) + lost(beside + late)
        interference.add(whole, PASS, [ended] if ended else [])
        interference.expected(USUAL)
    return interference.price


def test_before_anything_was_seen_all_of_its_time_is_charged() -> None:
    assert Interference().price == 1.0


@pytest.mark.parametrize("read", [0.003, 0.009])
def test_beside_idle_processors_reading_costs_next_to_nothing(read: float) -> None:
    assert after(300, lambda _: 0.0, read=read) < 0.3


@pytest.mark.parametrize("read", [0.003, 0.009])
def test_on_a_shared_device_all_of_its_time_is_lost(read: float) -> None:
    assert after(300, lambda seconds: seconds, read=read) > 0.75


def test_calls_that_cost_more_than_they_say_are_charged_what_rounds_lose() -> None:
    """On few cores the way to a drafter and back takes time, too."""
    assert after(1500, lambda seconds: 2.5 * seconds, read=0.006) == pytest.approx(2.5, abs=0.4)


def test_a_device_that_becomes_shared_is_noticed() -> None:
    interference = Interference()
    for shared in (False, True):
        for at in range(600):
            read = 0.003 * (at % 2)
            interference.add(USUAL + shared * 0.003 * ((at + 1) % 2), PASS, [read] if read else [])
            interference.expected(USUAL)
        assert (interference.price > 0.6) is shared
