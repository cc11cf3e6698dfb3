"""The bundled models with bias, bans and the likeliest tokens asked for: speculation changes neither text nor them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.types import Request, Rule, Sampling
from covey.drafters.choosing import Choosing
from tests.bundled import DRAFTED, SAMPLINGS, drafted, serve, target, texts
from tests.fakes import Collector, request
from tests.static_planner import StaticPlanner

LENGTH, COUNT = 24, 6


def sampling_of(number: int, frequent: Sequence[int]) -> Sampling:
    """Every third bans frequent tokens, every third prefers some so much that no others come, one does neither."""
    bias = [
        tuple((token, -100.0) for token in frequent[:40]),
        tuple((token, 25.0) for token in frequent[:6]),
        ((frequent[0], 1.5), (frequent[1], -1.5)),
    ][number % 3]
    base = list(SAMPLINGS.values())[number % 2]
    return replace(base, seed=number, logit_bias=bias, top_logprobs=number % 4, end_ids=target().info().end_ids)


def frequent_tokens() -> list[int]:
    counts = np.bincount(np.concatenate(texts()))
    return [int(token) for token in np.argsort(-counts)[:40]]


def asked(rule: Rule = Rule.COUPLED) -> list[Request]:
    frequent = frequent_tokens()
    return [
        request(number, texts()[number * 23], LENGTH, sampling=replace(sampling_of(number, frequent), rule=rule))
        for number in range(COUNT)
    ]


def accepted(sink: Collector) -> float:
    """Return the share of what was drafted for the requests that prefer a few tokens which the target accepted."""
    steered = [sink.ended[key] for key in range(COUNT) if key % 3 == 1]
    return sum(each.accepted for each in steered) / sum(each.drafted for each in steered)


@pytest.mark.timeout(600)
def test_no_text_depends_on_drafts_and_drafters_know_the_bias() -> None:
    plain, _ = serve(StaticPlanner(0, 1), asked())
    frequent = frequent_tokens()
    for key in range(COUNT):
        banned = set(frequent[:40]) if key % 3 == 0 else set()
        assert not banned & set(plain.tokens[key]), "a banned token was drawn"
        if key % 3 == 1:
            assert set(plain.tokens[key]) <= set(frequent[:6])
        assert [len(ids) for ids, _ in plain.top[key]] == [key % 4] * (len(plain.tokens[key]) if key % 4 else 0)
    for case in DRAFTED:
        sink = drafted(asked(), case)
        assert sink.tokens == plain.tokens, case
        assert sink.top == plain.top, case
        if case.drafter == "draft_general":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Choosing, "steered", lambda _self, logits, *_: logits)
                blind = drafted(asked(), case)
            assert blind.tokens == plain.tokens
            assert accepted(sink) > 2 * accepted(blind) + 0.03, "it drafts as one that knows no bias"


@pytest.mark.timeout(600)
def test_bans_hold_under_the_rejection_rule_and_greedy_is_greedy() -> None:
    plain, _ = serve(StaticPlanner(0, 1), asked())
    frequent, sink = frequent_tokens(), drafted(asked(Rule.REJECTION), DRAFTED[0])
    for key in range(COUNT):
        if key % 2 == 0:  # greedy
            assert (sink.tokens[key], sink.top[key]) == (plain.tokens[key], plain.top[key])
        if key % 3 == 0:
            assert not set(frequent[:40]) & set(sink.tokens[key])
