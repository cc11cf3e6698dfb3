"""The length that a server tells is the one that its requests are held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.contracts.types import Request
from covey.requests.roster import Roster
from covey.target.opening import load_target
from covey.tritonio.fields import BadField, RequestParser
from tests.bundled import MODELS, SETTINGS
from tests.engines import answers
from tests.fakes import ManualClock


@pytest.mark.parametrize(("blocks", "output"), [(3, 20), (100, 20), (100, 0)])
def test_a_request_of_the_longest_length_is_answered_whole_and_a_longer_one_refused(blocks: int, output: int) -> None:
    """A prompt that is only scored may be as long as prompt and output together."""
    chosen = replace(SETTINGS, target=replace(SETTINGS.target, kv_blocks=blocks))
    target = load_target(MODELS / "target" / "1", chosen, name="target")
    longest = target.info().longest
    assert longest == min(blocks * 32, 2048)
    parser = RequestParser(None, target.info(), chosen.limits, Roster((), ManualClock()))

    def asked(prompt: int) -> Request:
        given: dict[str, Any] = {"input_ids": np.full(prompt, 300, np.int32), "max_tokens": np.int32([output])}
        given |= {"min_tokens": given["max_tokens"]} if output else {"return_prompt_log_probs": np.array([True])}
        return parser.parse(1, 0.0, given.get).request

    with pytest.raises(BadField, match=f"the context is {longest}" if output else f"of at most {longest} tokens"):
        asked(longest - output + 1)
    limits = {"token_budget": 256, "growth_tokens": 64, "block_size": 32}
    found = answers(target, [asked(longest - output)], **limits)
    assert len(found.tokens[1]) == output
    assert output or len(found.scores[1].logprobs) == longest - 1
