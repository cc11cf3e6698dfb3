"""The head in the box, in the profile that serves it: the text is the target's own, and drafts are mostly right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from covey import prompts
from covey.contracts import profile
from covey.contracts.ports import Drafter
from covey.contracts.types import Sampling
from covey.drafters import load_drafter
from covey.target.runner import TargetRunner
from covey.text.tokenization import load_tokenizer
from tests import engines
from tests.bundled import MODELS
from tests.fakes import Collector, request
from tests.static_planner import StaticPlanner

SETTINGS = profile.with_tokens(profile.load("demo-head"), 1 << 16)
TARGET, HEAD = (MODELS / name / "1" for name in ("target", SETTINGS.target.head))
DEPTH, LENGTH, BUDGET = 5, 48, 512


def answers(temperature: float, depth: int, drafters: Mapping[str, Drafter], target: TargetRunner) -> Collector:
    tokenizer = load_tokenizer(TARGET)
    assert tokenizer is not None
    asked = [
        request(key, tokenizer.encode(prompts.load(domain)[0]).ids, LENGTH, sampling=Sampling(temperature, seed=key))
        for key, domain in enumerate(prompts.DOMAINS)
    ]
    limits = {"token_budget": BUDGET, "growth_tokens": 64, "block_size": 32}
    found = engines.answers(target, asked, StaticPlanner(depth), drafters, **limits)
    target.check()
    return found


@pytest.mark.parametrize(
    ("temperature", "dtype"), [pytest.param(0.0, "auto", marks=pytest.mark.slow), (1.0, "auto"), (0.0, "int8")]
)
def test_the_text_is_the_targets_own_and_drafts_are_accepted(temperature: float, dtype: str) -> None:
    """Greedily 194 of 418 drafted tokens are."""
    settings = replace(SETTINGS.target, dtype=dtype)
    target = TargetRunner.load(TARGET, settings, token_budget=BUDGET, name="target", head=str(HEAD))
    head = load_drafter("head", HEAD, TARGET, SETTINGS, name=SETTINGS.target.head)
    plain = answers(temperature, 0, {}, target)
    found = answers(temperature, DEPTH, {SETTINGS.target.head: head}, target)
    assert found.tokens == plain.tokens
    ended = found.ended.values()
    assert DEPTH * sum(each.accepted for each in ended) > sum(each.drafted for each in ended)
