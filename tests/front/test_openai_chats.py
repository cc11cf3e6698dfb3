"""What a chat's messages and a body of /v1/responses become, and what an answer tells, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from covey.front.openai import generation, inputs
from covey.front.openai.items import Output
from covey.front.openai.pieces import Offsets, Piece, Pieces
from covey.front.openai.shapes import log_probs, metrics, usage
from covey_client.errors import InvalidRequest
from covey_client.response import Chunk, Usage

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "target" / "1"
CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"a": 1}'}


def test_messages_have_roles_that_templates_know() -> None:
    for role, rendered in (("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")):
        assert generation.checked_messages([{"role": role, "content": "a"}])[0]["role"] == rendered
    for role in ("critic", "function", "User", ""):
        with pytest.raises(InvalidRequest, match="allowed: the roles system"):
            generation.checked_messages([{"role": role, "content": "a"}])


def test_content_may_come_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]
    parts.append({"type": "output_text", "text": "d"})
    assert generation.checked_messages([{"role": "assistant", "content": parts}])[0]["content"] == "a\nb\nc\nd"
    odd: tuple[Any, ...] = (5, {"type": "image_url", "text": "a"}, {"type": ["text"], "text": "a"}, {"text": "a"}, {})
    for part in odd:
        with pytest.raises(InvalidRequest, match="content parts of type text"):
            generation.checked_messages([{"role": "user", "content": [part]}])


def test_a_template_is_told_how_much_to_think() -> None:
    low = {"reasoning_effort": "low"}
    assert generation.template_settings(low) == {**low, "add_generation_prompt": True}
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


def test_a_turn_of_several_items_is_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "When?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "Noon."},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "It is noon."},
    ]
    found = generation.checked_messages(inputs.as_chat({"input": items, "instructions": "Be short."})["messages"])
    assert [each["role"] for each in found] == ["system", "user", "assistant", "tool", "assistant"]
    turn = found[2]
    assert (turn["reasoning_content"], turn["content"]) == ("Hm.", "I look.")
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert turn["tool_calls"][0]["function"] == {"name": "now", "arguments": {"a": 1}}
    assert (found[3]["tool_call_id"], found[3]["content"]) == ("c1", "Noon.")
    assert "tool_calls" not in found[4]


def test_fields_get_the_names_that_chats_have() -> None:
    schema = {"name": "x", "schema": {"type": "object"}, "strict": True}
    body = {
        "input": "Hi",
        "max_output_tokens": 5,
        "temperature": 0.5,
        "top_k": 3,
        "text": {"format": {"type": "json_schema", **schema}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": None},
        "tools": [{"type": "function", "name": "now", "parameters": None}],
        "tool_choice": {"type": "function", "name": "now"},
        "include": [inputs.LOG_PROBS, inputs.ENCRYPTED],
        "top_logprobs": 2,
        "store": False,
        "metadata": {"a": "b"},
        "previous_response_id": None,
    }
    named = {"type": "function", "function": {"name": "now"}}
    assert inputs.as_chat(body) == {
        "messages": [{"role": "user", "content": "Hi"}],
        **{"max_tokens": 5, "temperature": 0.5, "top_k": 3, "logprobs": True, "top_logprobs": 2},
        "response_format": {"type": "json_schema", "json_schema": schema},
        "reasoning_effort": "low",
        "tools": [named],
        "tool_choice": named,
    }


@pytest.mark.parametrize(
    ("body", "field", "told"),
    [
        ({"store": True}, "store", "the whole conversation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "the whole conversation"),
        ({"background": True}, "background", "use stream"),
        ({"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
        ({"truncation": "auto"}, "truncation", "only 'disabled'"),
        ({"include": ["file_search_call.results"]}, "include", inputs.LOG_PROBS),
        ({"text": 5}, "text", "an object"),
        ({"instructions": ["a"]}, "instructions", "a text"),
        ({"input": []}, "input", "1 to"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input", "function_call_output"),
        ({"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input", "parts with text"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(body: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        inputs.as_chat({"input": "Hi", **body})
    assert caught.value.field == field


def test_errors_of_a_chat_s_fields_have_the_names_of_the_body() -> None:
    error = inputs.renamed(InvalidRequest("max_tokens: got 0, allowed: 1 or more", "max_tokens"))
    assert (error.field, str(error)) == ("max_output_tokens", "max_output_tokens: got 0, allowed: 1 or more")
    other = InvalidRequest("top_p: got 2", "top_p")
    assert inputs.renamed(other) is other


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    output = Output()
    assert [event["type"] for event in output.end("completed")][-1] == "response.output_item.done"
    (item,) = output.items
    assert (item["status"], item["content"][0]["text"]) == ("completed", "")


def sentences() -> Tokenizer:
    """As SentencePiece's are: spaces are a character of their own, and other bytes are spelt."""
    vocab = {"<unk>": 0, "▁a": 1, "b": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def test_a_special_token_is_no_part_of_the_text() -> None:
    pieces = Pieces(Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
    end = pieces.of(0)
    assert (end.token, end.shown) == ("<|endoftext|>", False)
    assert Offsets().of([end, end]) == [0, 0]
    unknown = pieces.of(1 << 30)
    assert (unknown.raw, unknown.token) == (b"", f"token_id:{1 << 30}"), "a model may have more ids than its tokenizer"


@pytest.mark.parametrize(
    ("token", "raw", "name"), [(1, b" a", " a"), (2, b"b", "b"), (3 + 0xE2, b"\xe2", f"token_id:{3 + 0xE2}")]
)
def test_spaces_and_spelt_bytes(token: int, raw: bytes, name: str) -> None:
    piece = Pieces(sentences()).of(token)
    assert (piece.raw, piece.token) == (raw, name)
