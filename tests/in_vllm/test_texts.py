"""Requests are known by their texts: what vLLM's runner gave its proposer, recorded, and the cases that it has not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from covey_vllm.texts import LEAVE, Row, Text, Texts

RECORDED = json.loads((Path(__file__).parent / "calls.json").read_text())
LIMIT = 128


def follow(texts: Texts, rows: Sequence[tuple[Sequence[int], int]]) -> list[Row]:
    """A call with these texts, of whose last tokens so many were sampled in the step."""
    tokens = np.zeros((8, LIMIT), np.int32)
    for row, (text, _) in enumerate(rows):
        tokens[row, : len(text)] = text
    lengths = np.array([len(text) for text, _ in rows] + [0] * (8 - len(rows)), np.int32)
    sampled = [list(text[len(text) - new :]) for text, new in rows]
    found = texts.follow(sampled, lengths, tokens, 0.0)
    texts.gone()
    return found


def test_every_request_of_the_recorded_run_is_one_request_here() -> None:
    """Rows were moved, preempted and brought back, prompts read in chunks and out of the cache, and two aborted."""
    whole, texts = RECORDED["texts"], Texts(LIMIT)
    keys: dict[str, set[int]] = {}
    moved = again = 0
    places: dict[str, int] = {}
    last: dict[str, int] = {}
    for call, rows in enumerate(RECORDED["calls"]):
        given = [(whole[name][:length], sampled) for name, length, sampled, _ in rows]
        for place, (row, (name, length, sampled, prompt)) in enumerate(zip(follow(texts, given), rows)):
            moved += places.setdefault(name, place) != place
            again += last.get(name, call - 1) != call - 1
            places[name], last[name] = place, call
            if row.active is None:
                assert length == prompt
                assert not sampled
                continue
            keys.setdefault(name, set()).add(row.active.key)
            assert row.active.tokens().tolist() == whole[name][:length]
            assert row.active.request.num_prompt == prompt
            assert row.followed == (sampled > 0 and row.active.rounds > 1)
    assert moved > 0
    assert again > 0
    assert all(len(each) == 1 for each in keys.values())
    assert len(set.union(*keys.values())) == len(keys)


def test_requests_with_the_same_text_are_two() -> None:
    texts = Texts(LIMIT)
    first = follow(texts, [([5, 6, 7], 1), ([5, 6, 7], 1)])
    second = follow(texts, [([5, 6, 7, 8], 1), ([5, 6, 7, 9, 4], 2)])
    assert len({row.active.key for row in first if row.active}) == 2
    assert {row.active.key for row in first if row.active} == {row.active.key for row in second if row.active}
    assert [row.active.tokens().tolist() for row in second if row.active] == [[5, 6, 7, 8], [5, 6, 7, 9, 4]]


def test_a_row_that_goes_on_from_another_requests_text_is_not_taken_for_it() -> None:
    """Of two requests with one prompt the one behind has ended, and the other's row has moved to its place."""
    texts = Texts(LIMIT)
    behind, ahead = follow(texts, [([5, 6, 7], 1), ([5, 6, 7, 8, 9], 1)])
    (now,) = follow(texts, [([5, 6, 7, 8, 9, 4], 1)])
    assert now.active is ahead.active
    assert now.active is not behind.active
    assert now.followed


def test_steps_without_a_call_are_made_up_for_and_teach_nothing() -> None:
    """vLLM asks nobody while a request is about to reach the longest text."""
    texts = Texts(LIMIT)
    (before,) = follow(texts, [([5, 6, 7], 1)])
    (after,) = follow(texts, [([5, 6, 7, 8, 9, 4], 1)])
    assert after.active is before.active
    assert not after.followed
    assert after.active is not None
    assert after.active.tokens().tolist() == [5, 6, 7, 8, 9, 4]


def test_a_request_without_rows_is_kept_for_a_while_and_then_gone() -> None:
    texts = Texts(LIMIT)
    follow(texts, [([5, 6, 7], 1), ([9, 9], 1)])
    text = [9, 9]
    for _ in range(LEAVE):
        text.append(4)
        follow(texts, [(text, 1)])
    (_, back) = follow(texts, [([*text, 4], 1), ([5, 6, 7, 1], 1)])
    assert back.active is not None
    assert back.active.request.num_prompt == 2
    text.append(4)
    for _ in range(LEAVE + 1):
        text.append(4)
        follow(texts, [(text, 1)])
    assert len(texts) == 1
    (_, new) = follow(texts, [([*text, 4], 1), ([5, 6, 7, 1, 2], 1)])
    assert new.active is not None
    assert new.active is not back.active
    assert new.active.request.num_prompt == 4


def test_requests_are_known_by_vllms_names_where_it_says_them() -> None:
    """And may say how they want to be drafted for; what is no such wish is left out."""

    def named(name: str, **wanted: object) -> SimpleNamespace:
        return SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(extra_args=wanted or None))

    texts, tokens = Texts(LIMIT, ("ngram",)), np.full((3, LIMIT), 5, np.int32)
    names = [
        named("a", speculation="off", drafter="ngram"),
        named("b", speculation="fast", drafter="other"),
        named("c"),
    ]
    first = texts.follow([[5]] * 3, np.array([3, 3, 3], np.int32), tokens, 0.0, names)
    second = texts.follow([[5]] * 3, np.array([4, 4, 4], np.int32), tokens, 0.0, names[::-1])
    assert [row.active for row in second] == [row.active for row in first[::-1]]
    wanted = [(row.active.request.speculation, row.active.request.drafter) for row in first if row.active]
    assert wanted == [("off", "ngram"), ("auto", ""), ("auto", "")]


def test_a_request_that_vllm_names_is_held_as_long_as_vllm_holds_it() -> None:
    """A preempted one has no row for as long as it waits."""
    texts, tokens = Texts(LIMIT), np.full((2, LIMIT), 5, np.int32)
    names = [SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(extra_args=None)) for name in "ab"]
    (_, second) = texts.follow([[5]] * 2, np.array([3, 3], np.int32), tokens, 0.0, names)
    for length in range(4, 2 * LEAVE):
        texts.follow([[5]], np.array([length], np.int32), tokens, 0.0, names[:1])
        assert texts.gone({"a", "b"}) == []
    assert texts.gone({"a"}) == [second.active]
    assert len(texts) == 1


def test_rows_that_stay_are_known_by_the_ends_of_their_texts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM changes its arrays in place; what was there at the last call is not looked for in them."""

    def compared(_text: Text, _tokens: object) -> bool:
        raise AssertionError("a whole text was compared")

    texts, tokens = Texts(LIMIT), np.arange(3 * LIMIT, dtype=np.int32).reshape(3, LIMIT)
    lengths = np.array([40, 3, 90], np.int32)
    first = texts.follow([[0]] * 3, lengths, tokens, 0.0)
    monkeypatch.setattr(Text, "begins", compared)
    for _ in range(3):
        lengths += 2
        rows = texts.follow([[0, 0]] * 3, lengths, tokens, 0.0)
        assert [row.active for row in rows] == [row.active for row in first]
        assert all(row.followed for row in rows)
    assert [row.active.num_tokens for row in rows if row.active] == lengths.tolist()
