"""What a chat's messages become, and what an answer tells, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from covey.front.openai import generation
from covey.front.openai.pieces import Offsets, Piece
from covey.front.openai.shapes import log_probs, metrics, usage
from covey_client.errors import InvalidRequest
from covey_client.response import Chunk, Usage


def test_messages_have_roles_that_templates_know() -> None:
    for role, rendered in (("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")):
        assert generation.checked_messages([{"role": role, "content": "a"}])[0]["role"] == rendered
    for role in ("critic", "function", "User", ""):
        with pytest.raises(InvalidRequest, match="allowed: the roles system"):
            generation.checked_messages([{"role": role, "content": "a"}])


def test_content_may_come_in_parts() -> None:
    parts = [
        {"type": "text", "text": "a"},
        "b",
        {"type": "refusal", "refusal": "c"},
        {"type": "output_text", "text": "d"},
    ]
    assert generation.checked_messages([{"role": "assistant", "content": parts}])[0]["content"] == "a\nb\nc\nd"
    odd: tuple[Any, ...] = (5, {"type": "image_url", "text": "a"}, {"type": ["text"], "text": "a"}, {"text": "a"}, {})
    for part in odd:
        with pytest.raises(InvalidRequest, match="content parts of type text"):
            generation.checked_messages([{"role": "user", "content": [part]}])


def test_a_template_is_told_how_much_to_think() -> None:
    assert generation.template_settings({"reasoning_effort": "low"}) == {
        "reasoning_effort": "low",
        "add_generation_prompt": True,
    }
    none = {"reasoning_effort": "none", "chat_template_kwargs": {"x": 1}}
    assert generation.template_settings(none)["enable_thinking"] is False
    none["chat_template_kwargs"] = {"enable_thinking": True}
    assert generation.template_settings(none)["enable_thinking"] is True
    with pytest.raises(InvalidRequest, match="reasoning_effort: got 5"):
        generation.template_settings({"reasoning_effort": 5})


def test_a_prompt_counts_once_however_many_choices_it_has() -> None:
    each = Usage(input_tokens=10, reused_tokens=4, output_tokens=3)
    assert usage([each] * 4, n=2) == {
        "prompt_tokens": 20,
        "completion_tokens": 12,
        "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 8},
    }


def test_figures_of_drafting_are_of_all_choices_together() -> None:
    """The first drafts took 0, 1 and 1 tokens, and the other choice's one took 2, each with the target's own."""
    some = Usage(draft_tokens=6, accepted_draft_tokens=2, acceptance_histogram=(1, 2))
    more = Usage(draft_tokens=2, accepted_draft_tokens=2, acceptance_histogram=(0, 0, 1))
    chunks = [Chunk("", (), (), "eos", 1, each) for each in (some, more, Usage())]
    assert metrics(chunks)["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 2, 1],
        "num_spec_steps": 4,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 4,
    }


@pytest.mark.parametrize("reason", ["eos", "length", ""])
def test_the_token_that_ends_a_chat_has_no_entry(reason: str) -> None:
    pieces = {5: Piece("a", b"a"), 0: Piece("<end>", b"<end>", shown=False)}
    chunk = Chunk("a", (5, 0), (-0.5, -0.1), reason, 1, Usage())
    told = log_probs(True, chunk, pieces, Offsets())["content"]
    assert [each["token"] for each in told] == (["a"] if reason == "eos" else ["a", "<end>"])
    assert log_probs(False, chunk, pieces, Offsets())["tokens"] == ["a", "<end>"]
