"""Answers whose connection breaks go on with the same text, or end; and how often a dead server is started again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
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


def chunks(rng: random.Random, tokens: tuple[int, ...] = WHOLE, seed: int = 7) -> list[Chunk]:
    """The answer in pieces of any size; text comes when it will, as of characters of several tokens."""
    text, found, at, said = "".join(f"w{token} " for token in tokens), [], 0, 0
    while at < len(tokens):
        size = rng.randrange(0, 4)
        end = said + rng.randrange(0, 12)
        part = tokens[at : at + size]
        at += size
        last = at >= len(tokens)
        end = len(text) if last else end
        said_last, scores = "length" if last else "", tuple(map(float, part))
        top = tuple(2 * token + beside for token in part for beside in (0, 1))
        more = {"top_ids": top, "top_log_probs": top, "prompt_ids": () if found else (4, 5)}
        found.append(Chunk(text[said:end], part, scores, said_last, seed, Usage(), **more))
        said = min(end, len(text))
    return found


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
        for chunk in super().chunks():
            yield chunk


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
        return Completion.join([chunk async for chunk in stream])

    assert asyncio.run(run()).text == TEXT


def test_nothing_is_asked_again_unless_it_is_wanted() -> None:
    parts = chunks(random.Random(1))
    with pytest.raises(ConnectionLost):
        list(Stream(lambda: Call(parts, ConnectionLost("gone"), 3)))
    for error in (errors.InvalidRequest("x: got 1"), errors.DeadlineExceeded("late"), errors.Overloaded("queue full")):
        calls = [Call(parts, error, 0)]
        with pytest.raises(type(error)):
            list(Stream(calls.pop, Resumption(lambda _settings: Request({}), {})))


def test_another_answer_is_not_joined_to_this_one() -> None:
    first, other = chunks(random.Random(1)), chunks(random.Random(2), (*WHOLE[:5], 1, *WHOLE[6:]))
    calls = [Call(other, None, len(other)), Call(first, None, len(first) - 1)]
    resumption = Resumption(lambda _settings: Request({}), {})

    def ask() -> Call:
        resumption.request()
        return calls.pop()

    with pytest.raises(ConnectionLost, match="another answer"):
        list(Stream(ask, resumption))
    assert not calls


def test_the_same_text_of_other_tokens_is_another_answer() -> None:
    usage = Usage()
    first = [Chunk("ab", (1, 2), (), "", 7, usage), Chunk("c", (3,), (), "length", 7, usage)]
    other = [Chunk("ab", (9,), (), "", 7, usage), Chunk("c", (3,), (), "length", 7, usage)]
    resumption = Resumption(lambda _settings: Request({}), {})
    assert resumption.new(first[0]) == first[0]
    resumption.request()
    with pytest.raises(ConnectionLost, match="another answer"):
        resumption.new(other[0])


def test_rests_grow_and_begin_anew_when_something_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey_client.resumption.FIRST_REST", 0.25)
    monkeypatch.setattr("covey_client.resumption.LONGEST_REST", 0.75)
    resumption = Resumption(lambda _settings: Request({}), {})
    assert [resumption.rest(ConnectionLost("gone")) for _ in range(3)] == [0.25, 0.5, 0.75]
    assert resumption.new(Chunk("a", (1,), (), "", 7, Usage()))
    assert resumption.rest(ConnectionLost("gone")) == 0.25


def test_what_the_first_response_had_of_the_prompt_does_not_come_again() -> None:
    scores = {
        "prompt_ids": (4, 5),
        "prompt_log_probs": (-1.0,),
        "prompt_top_ids": (5,),
        "prompt_top_log_probs": (-1.0,),
    }
    resumption = Resumption(lambda _settings: Request({}), {})
    resumption.new(Chunk("a", (1,), (), "", 7, Usage(), **scores))  # type: ignore[arg-type]
    resumption.request()
    again = resumption.new(Chunk("ab", (1, 2), (), "", 7, Usage(), **scores))  # type: ignore[arg-type]
    assert again == Chunk("b", (2,), (), "", 7, Usage())


def test_patience_has_an_end() -> None:
    now = [0.0]
    resumption = Resumption(lambda _settings: Request({}), {}, lambda: now[0])
    assert resumption.rest(ConnectionLost("gone")) is not None
    now[0] = PATIENCE + 1
    assert resumption.rest(ConnectionLost("gone")) is None


class Refused:
    """A call that says nothing but why not."""

    def chunks(self) -> Iterator[Chunk]:
        yield from ()
        raise errors.InvalidRequest("drafter: got 'nobody'", "drafter")

    def cancel(self) -> None:
        """It has ended."""


def test_a_call_that_was_refused_is_let_go_when_the_error_is() -> None:
    """And not by a collection at the end of the process, when gRPC's threads may have stopped within a lock of it."""
    calls = [Refused()]
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
    stream = Stream(lambda: Call([], None, 0), Resumption(lambda _settings: Request({}), {}))
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
    canned = canned_folder()
    profile = tmp_path / "tiny.toml"
    profile.write_text('models = ["covey"]\n')
    words = [sys.executable, "-m", "covey.launcher", "--profile", str(profile), "--http-port", "0", "--grpc-port", "0"]
    where = ["--model-repository", str(canned.folder / "models"), "--backends", str(canned.folder / "backends")]
    words += ["--metrics-port", "0", *where, "--log-file", str(tmp_path / "tritonserver.log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            said += launcher.stdout.readline()
            assert launcher.poll() is None
        grpc = said.partition("covey generate --url ")[2].split()[0]
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        [server] = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("triton")]
        found: list[str] = []

        def run() -> None:
            try:
                with Client(grpc, timeout=90) as client:
                    found.append("".join(chunk.text for chunk in client.stream("slow 40", resume=True)))
            except errors.CoveyClientError as error:
                found.append(repr(error))

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(1.0)
        os.kill(server, signal.SIGKILL)
        thread.join()
        launcher.send_signal(signal.SIGTERM)
        _, problems = launcher.communicate(timeout=60)
    whole = "".join(f"w{number} " for number in range(40))
    assert [text.split() for text in found] == [whole.split()]
    assert "starting tritonserver again in 0 s" in problems
    assert "ready again" in problems
    assert launcher.returncode == 0
