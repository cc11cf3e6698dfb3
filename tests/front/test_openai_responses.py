"""What a body of /v1/responses asks of a chat, and an answer without a word, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from covey.front.openai import generation, inputs
from covey.front.openai.items import Output
from covey_client.errors import InvalidRequest

CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"a": 1}'}


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
