"""What is refused before it is cut into tokens, and long prompts that take turns."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from covey.contracts.errors import BadField, Overloaded
from covey.process.log_rate import Rate
from covey.text.tokenization import load_tokenizer, longest_token, token_ids
from covey.tritonio.slow_jobs import SlowJobs
from tests.tritonio.parsing import INFO, ids, parser, text
from tests.waiting import until

BUNDLED = Path(__file__).parents[2] / "model_repository" / "target" / "1"


def bundled() -> Tokenizer:
    found = load_tokenizer(BUNDLED)
    assert found is not None
    return found


TOKENIZER = bundled()


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=300) | st.text(" \n", max_size=300) | st.sampled_from(["<|endoftext|>" * 20, "\x00" * 99]))
def test_no_text_has_fewer_tokens_than_its_bytes_say(text: str) -> None:
    ids = token_ids(TOKENIZER, text)
    assert ids.tolist() == TOKENIZER.encode(text).ids
    assert len(ids) * longest_token(TOKENIZER) >= len(text.encode())


def test_what_may_leave_text_out_has_no_bound() -> None:
    assert longest_token(TOKENIZER) < 100
    changed = bundled()
    changed.normalizer = normalizers.Strip()
    assert longest_token(changed) == math.inf
    for leaving_out in (pre_tokenizers.Whitespace(), pre_tokenizers.Split(" ", "removed")):
        changed = bundled()
        changed.pre_tokenizer = pre_tokenizers.Sequence([leaving_out, pre_tokenizers.ByteLevel()])
        assert longest_token(changed) == math.inf
    changed = bundled()
    changed.enable_truncation(5)
    assert longest_token(changed) == math.inf
    assert longest_token(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))) == math.inf
    few = Tokenizer(models.BPE({"a": 0}, []))  # other bytes have no token, and are left out
    few.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert longest_token(few) == math.inf


def held_up(queue: SlowJobs, tenant: str) -> threading.Event:
    """The queue is at work on a job of that tenant until the event is set."""
    begun, held = threading.Event(), threading.Event()

    def job(_problem: Exception | None) -> None:
        begun.set()
        held.wait()

    queue.put(tenant, 1, job)
    begun.wait()
    return held


def test_a_bomb_is_refused_by_its_length() -> None:
    tokenizer = MagicMock(wraps=TOKENIZER)
    own = parser(tokenizer=tokenizer)
    bomb = " " * (int(INFO.longest * longest_token(TOKENIZER)) + 1)
    for act in (own.prompt_bytes, lambda tensor: own.parse(1, 0.0, tensor)):
        with pytest.raises(BadField, match=rf"text_input: got '{len(bomb)} bytes', allowed: prompts of at most"):
            act({"text_input": text(bomb)}.get)
    assert not tokenizer.encode_batch_fast.called
    short = {"text_input": text("a")}
    assert own.prompt_bytes(short.get) == 1
    own.parse(1, 0.0, short.get)
    assert tokenizer.encode_batch_fast.call_count == 1


def test_tenants_take_turns_by_bytes() -> None:
    queue = SlowJobs()
    held = held_up(queue, "flood")
    done: list[str] = []
    for number in range(6):
        queue.put("flood", 1000, lambda _problem, number=number: done.append(f"flood {number}"))
    for number in range(3):
        queue.put("small", 100, lambda _problem, number=number: done.append(f"small {number}"))
    held.set()
    queue.stop()
    assert sorted(done[:4]) == ["flood 0", "small 0", "small 1", "small 2"]
    assert done[4:] == [f"flood {number}" for number in range(1, 6)]
    with pytest.raises(Overloaded):
        queue.put("late", 1, lambda _problem: None)


def test_their_bytes_are_bounded_and_a_drain_refuses_those_that_wait_and_counts_the_one_at_hand() -> None:
    queue = SlowJobs(1000)
    held = held_up(queue, "a")
    told: list[Exception | None] = []
    queue.put("a", 5000, told.append)  # alone it may be of any size
    with pytest.raises(Overloaded, match=r"queue full: \d+ bytes .* try again in 1 s"):
        queue.put("a", 1, told.append)
    with pytest.raises(Overloaded, match="queue full"):
        queue.put("b", 1, told.append)
    assert len(queue) == 2
    queue.refuse()
    with pytest.raises(Overloaded, match="stopping"):
        queue.put("b", 1, told.append)
    assert len(queue) == 2, "nobody has been told yet"
    held.set()
    until(lambda: not len(queue))
    assert [type(each) for each in told] == [Overloaded]
    queue.stop()


def test_a_job_that_fails_ends_nothing() -> None:
    queue, done = SlowJobs(), threading.Event()
    queue.put("a", 1, lambda _problem: 1 / 0)  # type: ignore[arg-type,return-value]
    queue.put("a", 1, lambda _problem: done.set())
    assert done.wait(10)
    queue.stop()


def test_priorities_are_a_tenant_s_own() -> None:
    own = parser(priorities=("gold:10", "*:0"))

    def ask(tenant: str, priority: int) -> int:
        tensors = {**ids(5), "tenant": text(tenant), "priority": np.array([priority])}
        return int(own.parse(1, 0.0, tensors.get).request.priority)

    assert ask("gold", 10) == 10
    assert ask("other", -5) == -5
    with pytest.raises(BadField, match="priority: got 1, allowed: at most 0 for this tenant"):
        ask("other", 1)
    with pytest.raises(BadField, match="priority: got 11"):
        ask("gold", 11)


def test_lines_of_a_kind_are_few() -> None:
    now = [0.0]
    rate = Rate(3, 10.0, lambda: now[0])
    assert [rate.passes("forged", f"line {n}") for n in range(5)] == ["line 0", "line 1", "line 2", None, None]
    assert rate.passes("other", "x") == "x"
    now[0] = 10.0
    assert rate.passes("forged", "line 5") == "line 5 (2 more of this kind were left out)"
    assert rate.passes("forged", "line 6") == "line 6"
