"""What prompts say of drafters, before any of them has drafted."""

from __future__ import annotations

import numpy as np
import pytest

from covey.contracts.types import Hit
from covey.planner.drafters.beliefs import FIRST, LIKELIHOOD, Beliefs
from covey.requests.active import ActiveRequest, TextJudgement
from tests.fakes import request

NAMES = ("one", "two")
PROMPT = list(range(40))


def asked(beliefs: Beliefs, key: int, *log_q: float) -> ActiveRequest:
    """A request whose prompt of 32 tokens the drafters found so likely by token."""
    active = ActiveRequest(request(key, PROMPT, 10))
    beliefs.of(active)
    for name, likely in zip(NAMES, log_q):
        active.judgements[name] = TextJudgement(prompt_log_q=32 * likely, prompt_tokens=32)
    beliefs.take_judgements([active])
    beliefs.look_around([active])
    return active


def odds(beliefs: Beliefs, active: ActiveRequest) -> list[float]:
    """Log odds that each drafter's first draft is accepted, beside what is believed of any drafter at first."""
    (tokens,) = beliefs.expected([active], 0.0)
    rates = tokens[0, :, 1] - 1.0
    found: list[float] = (np.log(rates / (1 - rates)) - np.log(FIRST / (1 - FIRST))).tolist()
    return found


def test_a_prompt_speaks_for_who_finds_it_likelier_than_the_others_do() -> None:
    beliefs = Beliefs(NAMES, 3)
    found = odds(beliefs, asked(beliefs, 1, -1.0, -3.0))
    assert found == pytest.approx([LIKELIHOOD, -LIKELIHOOD])
    alone = Beliefs(NAMES, 3)
    assert odds(alone, asked(alone, 1, -2.0)) == pytest.approx([0.0, 0.0]), "one opinion says nothing of who is better"


def test_who_finds_all_such_prompts_likely_is_not_the_better_for_it() -> None:
    """The more neighbours' prompts it has judged, the more is it measured by its own mean over them."""
    beliefs, kept, hints = Beliefs(NAMES, 3), [], []
    for count in range(13):
        kept.append(asked(beliefs, count, -1.0, -3.0))
        hints.append(odds(beliefs, kept[-1]))
        assert hints[-1][1] == pytest.approx(-hints[-1][0])
    mine = [one for one, _ in hints]
    assert mine[0] == pytest.approx(LIKELIHOOD)
    assert mine == sorted(mine, reverse=True)
    assert mine[-1] < 0.5 * LIKELIHOOD
    found = odds(beliefs, asked(beliefs, 13, -1.0, -2.0))
    assert found[1] > found[0], "likelier than usual for it, though less than the other finds it"


def test_what_a_drafter_says_of_text_that_it_drafted_is_not_counted_again() -> None:
    beliefs, active = Beliefs(NAMES, 3), ActiveRequest(request(1, PROMPT, 10))
    active.output += range(4)  # a round in which three drafts were accepted
    beliefs.drafted([active], *(np.array([each], np.int32) for each in (0, 3, 3)))
    assert beliefs.ends([active]).tolist() == [[44, 0]]
    (before,) = beliefs.expected([active], 0.0)
    active.judgements["one"] = TextJudgement(start=40, hits=[Hit.MISS] * 4)
    beliefs.take_judgements([active])
    (after,) = beliefs.expected([active], 0.0)
    assert after.tolist() == before.tolist()
    active.output.append(7)
    active.judgements["one"].hits += [Hit.MISS]
    beliefs.take_judgements([active])
    (after,) = beliefs.expected([active], 0.0)
    assert (after[0, 0, 1:] < before[0, 0, 1:]).all()


def test_of_a_drafter_that_cannot_hold_a_text_no_drafts_are_expected() -> None:
    beliefs, active = Beliefs(NAMES, 3), ActiveRequest(request(1, PROMPT, 10))
    beliefs.longest = np.array([len(PROMPT), np.inf])
    (tokens,) = beliefs.expected([active], 0.0)
    assert tokens[0, 0].tolist() == [1.0] * 4
    assert tokens[0, 1, 3] > 1.0
