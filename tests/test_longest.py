"""The length that a server tells is the one that its requests are held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.contracts.ports import Target
from covey.contracts.types import Request
from covey.requests.roster import Roster
from covey.target.opening import load_target
from covey.tritonio.fields import BadField, RequestParser
from tests.bundled import MODELS, SETTINGS
from tests.engines import answers
from tests.fakes import Collector, ManualClock


@pytest.mark.parametrize("blocks", [3, 100])
def test_a_request_of_the_longest_length_is_answered_whole_and_a_longer_one_refused(blocks: int) -> None:
    chosen = replace(SETTINGS, target=replace(SETTINGS.target, kv_blocks=blocks))
    target = load_target(MODELS / "target" / "1", chosen, name="target")
    info = target.info()
    assert info.longest == min(blocks * 32, 2048)
    parser = RequestParser(None, info, chosen.limits, Roster((), ManualClock()))

    def asked(prompt: int, output: int) -> Request:
        given: dict[str, Any] = {"input_ids": np.full(prompt, 300, np.int32), "max_tokens": np.int32([output])}
        given["min_tokens"] = given["max_tokens"]
        return parser.parse(1, 0.0, given.get).request

    with pytest.raises(BadField, match=f"the context is {info.longest}"):
        asked(info.longest - 20, 21)
    assert len(answered(target, asked(info.longest - 20, 20)).tokens[1]) == 20


def test_a_prompt_that_is_only_scored_may_have_the_longest_length() -> None:
    target = load_target(MODELS / "target" / "1", SETTINGS, name="target")
    longest = target.info().longest
    parser = RequestParser(None, target.info(), SETTINGS.limits, Roster((), ManualClock()))

    def asked(prompt: int) -> Request:
        given: dict[str, Any] = {"input_ids": np.full(prompt, 300, np.int32), "max_tokens": np.int32([0])}
        return parser.parse(1, 0.0, {**given, "return_prompt_log_probs": np.array([True])}.get).request

    assert len(answered(target, asked(longest)).scores[1].logprobs) == longest - 1
    with pytest.raises(BadField, match=f"prompts of at most {longest} tokens"):
        asked(longest + 1)


def answered(target: Target, request: Request) -> Collector:
    return answers(target, [request], token_budget=256, growth_tokens=64, block_size=32)
