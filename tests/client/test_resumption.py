"""Answers whose connection breaks go on with the same text, or end; and how often a dead server is started again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.supervision.restarts import MOST, WINDOW, Restarts
from covey_client import Client, ConnectionLost, errors
from covey_client.async_client import AsyncStream
from covey_client.client import Stream
from covey_client.request import Request
from covey_client.response import Chunk, Completion, Usage
from covey_client.resumption import PATIENCE, Resumption

WHOLE = tuple(range(100, 140))
TEXT = "".join(f"w{token} " for token in WHOLE)


def chunk(text: str, tokens: tuple[int, ...]) -> Chunk:
    return Chunk(text, tokens, (), "", 7, Usage())


def chunks(rng: random.Random) -> list[Chunk]:
    """The answer in pieces of any size; text comes when it will, as of characters of several tokens."""
    found, at, said = list[Chunk](), 0, 0
    while at < len(WHOLE):
        size = rng.randrange(0, 4)
        end = said + rng.randrange(0, 12)
        part = WHOLE[at : at + size]
        at += size
        last = at >= len(WHOLE)
        end = len(TEXT) if last else end
        said_last, scores = "length" if last else "", tuple(map(float, part))
        top = tuple(2 * token + beside for token in part for beside in (0, 1))
        more: Any = {"top_ids": top, "top_log_probs": top, "prompt_ids": () if found else (4, 5)}
        found.append(Chunk(TEXT[said:end], part, scores, said_last, 7, Usage(), **more))
        said = min(end, len(TEXT))
    return found


def unbounded(now: Callable[[], float] = time.monotonic) -> Resumption:
    return Resumption(lambda _settings: Request({}), {}, now)


class Call:
    """Breaks after some of the chunks, with an error or without one."""

    def __init__(self, parts: list[Chunk], error: Exception | None, after: int) -> None:
        self._parts, self._error, self._after = parts, error, after

    def chunks(self) -> Iterator[Chunk]:
        yield from self._parts[: self._after]
        if self._error is not None and self._after < len(self._parts):
            raise self._error

    def cancel(self) -> None:
        pass


class AsyncCall(Call):
    async def chunks(self) -> AsyncGenerator[Chunk, None]:  # type: ignore[override]
        for each in super().chunks():
            yield each


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey_client.resumption.FIRST_REST", 0.001)
    monkeypatch.setattr("covey_client.resumption.LONGEST_REST", 0.001)


def broken(rng: random.Random, kind: type[Call], asked: list[object]) -> tuple[Callable[[], Any], Resumption]:
    """A server whose connections break several times."""
    problems: list[Exception | None] = [
        *(ConnectionLost("gone"), None, errors.ServerError("Stub process 'covey_0_0' is not healthy."), None),
        *(ConnectionLost("refused"), errors.Overloaded("starting; try again in 1 s")),
    ]

    def build(settings: Any) -> Request:
        asked.append(settings.get("seed"))
        return Request({})

    resumption = Resumption(build, {"temperature": 1.0})

    def ask() -> Call:
        resumption.request()
        parts = chunks(rng)
        if problems:
            return kind(parts, problems.pop(0), rng.randrange(len(parts)))
        return kind(parts, None, len(parts))

    return ask, resumption


@pytest.mark.parametrize("seed", range(20))
def test_the_text_is_what_it_would_have_been(seed: int) -> None:
    rng, asked = random.Random(seed), list[object]()
    found = Completion.join(Stream(*broken(rng, Call, asked)))
    assert (found.text, found.tokens, found.log_probs) == (TEXT, WHOLE, tuple(map(float, WHOLE)))
    assert found.top == tuple(tuple((2 * token + beside,) * 2 for beside in (0, 1)) for token in WHOLE)
    assert found.prompt_ids == (4, 5)
    assert len(asked) == 7
    assert asked[0] is None
    assert asked[-1] == 7, "the server drew it"

    async def run() -> Completion:
        stream = AsyncStream(*broken(random.Random(seed), AsyncCall, []))
        return Completion.join([each async for each in stream])

    assert asyncio.run(run()).text == TEXT


def test_nothing_is_asked_again_unless_it_is_wanted() -> None:
    parts = chunks(random.Random(1))
    with pytest.raises(ConnectionLost):
        list(Stream(lambda: Call(parts, ConnectionLost("gone"), 3)))
    for error in (errors.InvalidRequest("x: got 1"), errors.DeadlineExceeded("late"), errors.Overloaded("queue full")):
        calls = [Call(parts, error, 0)]
        with pytest.raises(type(error)):
            list(Stream(calls.pop, unbounded()))


@pytest.mark.parametrize(("text", "tokens"), [("ax", (1, 2)), ("ab", (1, 9)), ("ab", (9,))])
def test_another_answer_is_not_joined_to_this_one(text: str, tokens: tuple[int, ...]) -> None:
    """Nor one with the same text of other tokens."""
    calls = [Call([chunk(text, tokens)], None, 1), Call([chunk("ab", (1, 2)), chunk("c", (3,))], None, 1)]
    resumption = unbounded()

    def ask() -> Call:
        resumption.request()
        return calls.pop()

    with pytest.raises(ConnectionLost, match="another answer"):
        list(Stream(ask, resumption))
    assert not calls


def test_rests_grow_and_begin_anew_when_something_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey_client.resumption.FIRST_REST", 0.25)
    monkeypatch.setattr("covey_client.resumption.LONGEST_REST", 0.75)
    resumption = unbounded()
    assert [resumption.rest(ConnectionLost("gone")) for _ in range(3)] == [0.25, 0.5, 0.75]
    assert resumption.new(chunk("a", (1,)))
    assert resumption.rest(ConnectionLost("gone")) == 0.25


def test_what_the_first_response_had_of_the_prompt_does_not_come_again() -> None:
    scores: Any = {"prompt_ids": (4, 5), "prompt_log_probs": (-1.0,)}
    scores |= {"prompt_top_ids": (5,), "prompt_top_log_probs": (-1.0,)}
    resumption = unbounded()
    resumption.new(replace(chunk("a", (1,)), **scores))
    resumption.request()
    assert resumption.new(replace(chunk("ab", (1, 2)), **scores)) == chunk("b", (2,))


def test_patience_has_an_end() -> None:
    now = [0.0]
    resumption = unbounded(lambda: now[0])
    assert resumption.rest(ConnectionLost("gone")) is not None
    now[0] = PATIENCE + 1
    assert resumption.rest(ConnectionLost("gone")) is None


class Refused(Call):
    def chunks(self) -> Iterator[Chunk]:
        yield from ()
        raise errors.InvalidRequest("drafter: got 'nobody'", "drafter")


def test_a_call_that_was_refused_is_let_go_when_the_error_is() -> None:
    """And not by a collection at the end of the process, when gRPC's threads may have stopped within a lock of it."""
    calls = [Refused([], None, 0)]
    gone = weakref.ref(calls[0])
    gc.disable()
    try:
        with contextlib.suppress(errors.InvalidRequest):
            list(Stream(calls.pop))
        assert gone() is None
    finally:
        gc.enable()


def test_who_rests_can_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey_client.resumption.FIRST_REST", 60.0)
    monkeypatch.setattr("covey_client.resumption.LONGEST_REST", 60.0)
    stream = Stream(lambda: Call([], None, 0), unbounded())
    timer = threading.Timer(0.1, stream.cancel)
    timer.start()
    with pytest.raises(errors.Cancelled):
        list(stream)


def test_a_dead_server_is_started_again_at_once_then_later_and_not_for_ever() -> None:
    now = [0.0]
    restarts = Restarts(lambda: now[0])
    assert [restarts.rest() for _ in range(8)] == [0, 1, 2, 4, 8, 16, 32, 60]
    now[0] = WINDOW + 1
    assert restarts.rest() == 0
    rests = [restarts.rest() for _ in range(MOST)]
    assert rests[-1] is None
    assert None not in rests[:-1]


@pytest.mark.e2e
def test_a_killed_server_is_back_and_its_streams_go_on(canned_folder: Any, tmp_path: Path) -> None:
    words = [*canned_folder().command("covey"), "--log-file", str(tmp_path / "tritonserver.log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            said += launcher.stdout.readline()
            assert launcher.poll() is None
        grpc = said.partition("covey generate --url ")[2].split()[0]
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        [server] = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("triton")]
        with Client(grpc, timeout=90) as client:
            stream = client.stream("slow 40", resume=True)
            found = next(stream).text
            os.kill(server, signal.SIGKILL)
            found += "".join(each.text for each in stream)
        launcher.send_signal(signal.SIGTERM)
        _, problems = launcher.communicate(timeout=60)
    assert found.split() == [f"w{number}" for number in range(40)]
    assert "starting tritonserver again in 0 s" in problems
    assert "ready again" in problems
    assert launcher.returncode == 0
