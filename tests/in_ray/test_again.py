"""What is told of an answer that is asked for again is what was not told before, however both are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey_ray.again import CannotGoOn, Told

TEXT = "Once upon a time there was a server."


def cut(text: Sequence[Any], at: Sequence[int]) -> list[Any]:
    places = [0, *sorted({each % (len(text) + 1) for each in at}), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def chat(name: str, at: Sequence[int], text: str = TEXT, index: int = 0) -> Iterator[dict[str, Any]]:
    """A chat's events: thoughts, words, a call of a function, and where a token ends, as another run cuts them."""

    def event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {"id": name, "created": len(name), "object": "chat.completion.chunk", "choices": [choice]}

    yield event({"role": "assistant", "content": ""})
    for piece in cut(text.upper(), at):
        yield event({"reasoning_content": piece})
    for piece in cut(text, at):
        yield event({"content": piece})
    call = {"index": 0, "id": f"call of {name}", "type": "function", "function": {"name": "look", "arguments": ""}}
    yield event({"tool_calls": [call]})
    for piece in cut('{"place": "here"}', at):
        yield event({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield event({}, "tool_calls")


def completion(name: str, at: Sequence[int], text: str = TEXT, index: int = 0) -> Iterator[dict[str, Any]]:
    """A completion's, with log-probabilities of its tokens, which are its characters."""
    pieces = cut(text, at)
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        found = {"tokens": list(piece), "token_logprobs": [-ord(each) / 100 for each in piece], "top_logprobs": None}
        choice = {"index": index, "text": piece, "logprobs": found, "finish_reason": "length" if last else None}
        yield {"id": name, "created": len(name), "choices": [choice]}


def joined(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of them: texts and lists by where they stand, and how often everything else was said."""
    found: dict[str, Any] = {}

    def take(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                take(each, f"{path}.{name}")
        elif isinstance(value, list) and path.endswith("tool_calls"):
            for each in value:
                take({name: part for name, part in each.items() if name != "index"}, f"{path}[{each['index']}]")
        elif isinstance(value, list):
            found[path] = found.get(path, []) + value
        elif isinstance(value, str) and path.endswith((".id", ".type", ".role", ".name", ".finish_reason")):
            found[path] = (*found.get(path, ()), value)
        elif isinstance(value, str):
            found[path] = found.get(path, "") + value

    for event in events:
        for choice in event["choices"]:
            take({name: each for name, each in choice.items() if name != "index"}, f"{choice['index']}")
        if not event["choices"]:
            found["usage"] = (*found.get("usage", ()), event["usage"])
    return found


def mixed(runs: Sequence[Iterator[dict[str, Any]]], turns: Sequence[int]) -> list[dict[str, Any]]:
    """Several choices' events, which take turns, and the totals."""
    left, found = list(runs), []
    for turn in (*turns, *([0] * 1000)):
        if not left:
            break
        try:
            found.append(next(left[turn % len(left)]))
        except StopIteration:
            del left[turn % len(left)]
    return [*found, {"id": found[0]["id"], "created": 0, "choices": [], "usage": 9}]


CUTS = st.lists(st.integers(0, 1000), max_size=8)
TURNS = st.lists(st.integers(0, 1), max_size=40)


@settings(deadline=None)
@given(
    st.sampled_from([chat, completion]),
    st.lists(st.tuples(CUTS, CUTS, TURNS, st.integers(0, 60)), min_size=1, max_size=4),
)
def test_a_client_cannot_tell_that_an_answer_broke_off(kind: Any, runs: Any) -> None:
    """The last run is told to its end, the others as far as they come."""
    told, events = Told(), []
    for number, (one, two, turns, most) in enumerate(runs):
        run = mixed([kind(f"run {number}", one), kind(f"run {number}", two, TEXT[::-1], 1)], turns)
        if number:
            told.again()
        for event in run[: most if number < len(runs) - 1 else None]:
            new = told.new(event)
            assert new is not None or told.repeating
            events += [] if new is None else [new]
    whole = joined(mixed([kind("run 0", []), kind("run 0", [], TEXT[::-1], 1)], []))
    found = joined(events)
    calls = {path for path in found if path.endswith("].id")}
    assert {path: each for path, each in found.items() if path not in calls} == {
        path: each for path, each in whole.items() if path not in calls
    }
    assert all(len(found[path]) == 1 for path in calls)
    assert {event["id"] for event in events} == {events[0]["id"]}


@pytest.mark.parametrize("kind", [chat, completion])
def test_a_repetition_that_is_another_answer_is_refused(kind: Any) -> None:
    told = Told()
    for event in list(kind("one", [3, 9, 20]))[:-2]:
        told.new(event)
    told.again()
    with pytest.raises(CannotGoOn):
        list(map(told.new, kind("two", [5], TEXT.replace("upon", "over"))))


def test_what_is_no_answer_passes() -> None:
    error = {"error": {"message": "no", "type": "server_error"}}
    assert Told().new(error) == error
