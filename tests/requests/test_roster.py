"""Who can be asked, and when again."""

from __future__ import annotations

from covey.contracts.types import DrafterInfo
from covey.requests.roster import FIRST_REST, LONGEST_REST, Roster, State
from tests.fakes import ManualClock


def test_a_failure_is_followed_by_a_longer_rest_each_time() -> None:
    clock = ManualClock()
    roster = Roster(["one", "two"], clock)
    rests = []
    for _ in range(8):
        assert roster.serves("one")
        roster.failed("one")
        assert (roster.state("one"), roster.state("two")) == (State.RESTING, State.SERVING)
        began = clock.now()
        while not roster.serves("one"):
            clock.sleep(0.25)
        rests.append(clock.now() - began)
    assert rests == [min(LONGEST_REST, FIRST_REST * 2**place) for place in range(8)]
    for _ in range(2000):  # for hours
        roster.failed("one")
    clock.sleep(LONGEST_REST)
    assert roster.serves("one")
    roster.answered("one")
    roster.failed("one")
    clock.sleep(FIRST_REST)
    assert roster.serves("one"), "an answer makes rests short again"


def test_a_late_drafter_is_asked_when_it_has_answered_and_rested() -> None:
    clock = ManualClock()
    roster = Roster(["one"], clock)
    roster.late("one")
    clock.sleep(10 * LONGEST_REST)
    assert roster.state("one") is State.LATE
    roster.settled("one")
    assert roster.serves("one")
    roster.late("one")
    roster.settled("one")
    assert roster.state("one") is State.RESTING


def test_gauges_say_who_serves_and_what_is_there() -> None:
    roster = Roster(["one"], ManualClock())

    def gauges() -> list[float]:
        return [value for _, labels, value in roster.gauges() if labels == {"drafter": "one"}]

    assert gauges() == [1, 0], "it may be asked though it has not said what it holds"
    roster.came("one", DrafterInfo("one", 10, 10, 1, 7))
    assert gauges() == [1, 7]
    roster.failed("one")
    roster.gone("one")
    assert gauges() == [0, 0]
