from __future__ import annotations

import dataclasses

from covey.requests.active import ActiveRequest
from covey.requests.suspects import CROWD, LATELY, LONGEST_IN_A_CROWD, LONGEST_WAIT, Suspects
from tests.fakes import request


def rows(*keys: int, arrival: float = 0.0) -> list[ActiveRequest]:
    return [ActiveRequest(dataclasses.replace(request(key, [key]), arrival=arrival)) for key in keys]


def test_the_longest_output_is_tried_first_and_a_request_that_goes_on_waits_for_no_suspect() -> None:
    suspects, (short, long, spared) = Suspects(), rows(1, 2, 3)
    for active, tokens in ((short, 1), (long, 5), (spared, 2)):
        active.emit(list(range(tokens)), 0.0)
    suspects.died([short, long], 0.0)
    assert suspects.passable([short, long, spared], 1.0) == [spared]
    spared.opened, spared.num_cached_tokens = True, spared.num_tokens - 1
    assert suspects.passable([short, long, spared], 2.0) == [spared]
    assert suspects.passable([short, long, spared], 3.0) == [long]


def test_while_culprits_are_found_who_waited_for_long_is_told_to_try_again() -> None:
    suspects = Suspects()
    (culprit,), waiting, fresh = rows(1), rows(2, 3), rows(4, arrival=3.5)
    suspects.died([culprit], 0.0)
    assert suspects.died([culprit], 3.0) == ([culprit], [])
    assert suspects.passable([*waiting, *fresh], 3.5) == [*waiting, *fresh]
    assert suspects.died([*waiting, *fresh], LONGEST_WAIT + 1) == ([], waiting)
    assert [active.deaths for active in fresh] == [1]


def test_in_a_crowd_who_waited_for_less_long_is_told_to_try_again() -> None:
    suspects = Suspects()
    (culprit,), crowd = rows(1), rows(*range(2, 3 + CROWD))
    suspects.died([culprit], 0.0)
    assert suspects.died([culprit], 3.0) == ([culprit], [])
    suspects.passable([], 4.5)
    assert LONGEST_IN_A_CROWD < 5.0 < LONGEST_WAIT
    assert suspects.died(crowd[1:], 5.0) == ([], []), "few are tried one by one"
    assert suspects.passable(crowd[1:], 5.1) == crowd[1:2]
    for active in crowd:
        active.deaths = 0
    assert suspects.died(crowd, 5.0) == ([], crowd)
    assert suspects.passable(crowd, 5.1) == crowd


def test_while_culprits_are_found_who_waited_for_long_is_tried_together_with_others() -> None:
    suspects = Suspects()
    (culprit,), (other, *waiting) = rows(1), rows(2, 3, 4)
    suspects.died([culprit], 0.0)
    suspects.died([culprit], 2.0)
    assert suspects.passable([other, *waiting], 2.5) == [other, *waiting], "none is suspected"
    assert suspects.died([other, *waiting], 3.0) == ([], [])
    fresh = rows(5, arrival=3.5)
    fresh[0].deaths = 1
    assert suspects.passable([*fresh, other, *waiting], LONGEST_WAIT - 0.1) == [other], "alone, while there is time"
    assert suspects.passable([*fresh, other, *waiting], LONGEST_WAIT + 1) == [other, *waiting]
    assert suspects.died([other, *waiting], LONGEST_WAIT + 2) == ([], [other, *waiting])


def test_a_wait_before_the_first_death_does_not_count_and_one_death_alone_proves_nothing() -> None:
    suspects = Suspects()
    (culprit,), old = rows(1), rows(2)
    suspects.died([culprit], 100.0)
    suspects.died([culprit], 101.0)
    assert suspects.died(old, 102.0) == ([], [])
    suspects = Suspects()
    suspects.died(rows(3), 0.0)
    assert suspects.died(rows(5), LONGEST_WAIT + 1) == ([], []), "no culprit was found"
    assert suspects.died(rows(6), LONGEST_WAIT + 2 + LATELY) == ([], [])
