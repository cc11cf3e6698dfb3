"""Which replica an answer comes from, and when it ends with an error, by replicas that answer on command."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayError
from ray.serve.exceptions import BackPressureError

from covey_ray import answer as module
from covey_ray.answer import Answer
from covey_ray.asked import Another, Asked, Head, Lost

ASKED = Asked("a prompt", "POST", "/v1/completions")
EVENTS = {"content-type": "text/event-stream"}
SILENCE = b"silence"
Pieces = Callable[[Asked], list[Any]]


class Replicas:
    """Stands for a handle: each call is answered by the next of these; what is no bytes and no head is raised."""

    def __init__(self, *answers: Pieces) -> None:
        self._answers = list(answers)
        self.asked: list[Asked] = []
        self.cancelled = 0

    def remote(self, asked: Asked) -> Any:
        self.asked.append(asked)
        replicas = self

        class Stream:
            def __init__(self, pieces: list[Any]) -> None:
                self._pieces = iter(pieces)

            async def __anext__(self) -> Any:
                piece = next(self._pieces, None)
                if piece is None:
                    raise StopAsyncIteration
                if isinstance(piece, BaseException):
                    raise piece
                if piece is SILENCE:
                    await asyncio.sleep(60)
                return piece

            def cancel(self) -> None:
                replicas.cancelled += 1

        return Stream(self._answers.pop(0)(asked))


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "a", "choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
GONE = ActorUnavailableError("the node is gone", None)


def begins(replica: str, *pieces: Any, status: int = 200, identity: str = "here") -> Pieces:
    return lambda _: [b"", Head(replica, identity, status, EVENTS), *pieces]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_REST", 0.0)


def streamed(replicas: Replicas) -> tuple[str, str]:
    """The text and the error that a client sees; the stream has to end in order."""

    async def run() -> list[bytes]:
        answer = Answer(replicas, ASKED)
        return [piece async for piece in answer.events(await answer.head())]

    *events, last = asyncio.run(run())
    assert last == DONE
    found = [json.loads(each.removeprefix(b"data: ")) for each in events]
    text = "".join(each["choices"][0]["text"] for each in found if "choices" in each)
    return text, "".join(each["error"]["message"] for each in found if "error" in each)


def test_a_stream_goes_on_with_a_replica_of_the_same_identity() -> None:
    replicas = Replicas(
        begins("one", event("Once "), event("upon"), GONE),
        begins("two", event("Once upon a"), event(" time", "length"), DONE),
    )
    assert streamed(replicas) == ("Once upon a time", "")
    assert [(each.identity, each.avoid) for each in replicas.asked] == [("", frozenset()), ("here", frozenset({"one"}))]
    assert replicas.cancelled == 2


FULL: Pieces = lambda _: [BackPressureError(num_queued_requests=9, max_queued_requests=9)]  # noqa: E731
BUSY = begins("two", status=503)
BREAKS, GOES_ON = begins("one", event("Once "), GONE), begins("two", event("Once more", "stop"), DONE)


@pytest.mark.parametrize(
    "answers",
    [
        [BREAKS],
        [begins("one", event("Once "), Lost("its connection"))],
        [begins("one", event("Once "))],
        [BREAKS, FULL, BUSY],
    ],
    ids=["node", "connection", "no end", "others full or busy"],
)
def test_however_it_breaks_off_it_goes_on(answers: list[Pieces]) -> None:
    assert streamed(Replicas(*answers, GOES_ON)) == ("Once more", "")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([begins("one", event("Once "), RayError("lost at sea"))], "lost at sea"),
        ([BREAKS, begins("two", event("Twice "), DONE)], "the repeated answer has another text"),
        ([begins("one", event("Once "), GONE, identity="")], "no other server is known to write the same"),
        ([BREAKS, lambda _: [Another("other weights")]], "server was lost, and the text cannot go on: other weights"),
    ],
)
def test_where_it_cannot_go_on_it_ends_with_an_error(answers: list[Pieces], why: str) -> None:
    text, error = streamed(Replicas(*answers))
    assert text == "Once "
    assert why in error


def test_nobody_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackPressureError):
        streamed(Replicas(FULL))
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    assert streamed(Replicas(BREAKS))[0] == "Once "


@pytest.mark.parametrize("first", [BUSY, lambda _: [Lost("refused", "two")]], ids=["busy", "not reached"])
def test_a_replica_that_cannot_answer_is_left_for_another(first: Pieces) -> None:
    replicas = Replicas(first, GOES_ON)
    assert streamed(replicas) == ("Once more", "")
    assert [each.avoid for each in replicas.asked] == [frozenset(), frozenset({"two"})]


def test_a_replica_that_says_nothing_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.01)
    assert streamed(Replicas(begins("one", event("Once "), SILENCE), GOES_ON)) == ("Once more", "")


def test_what_is_lost_is_told_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(Lost("refused", "one")))
    assert (str(error), error.replica) == ("refused", "one")


def whole(replicas: Replicas) -> tuple[Head, bytes]:
    async def run() -> tuple[Head, bytes]:
        answer = Answer(replicas, ASKED)
        return await answer.whole(await answer.head())

    return asyncio.run(run())


def test_where_all_are_busy_the_answer_says_so() -> None:
    head, said = whole(Replicas(BUSY, begins("one", status=503), begins("two", b"full", status=503)))
    assert (head.status, said) == (503, b"full")


def test_a_whole_answer_that_is_lost_is_asked_for_again() -> None:
    replicas = Replicas(lambda _: [GONE], begins("one", b"half", Lost("gone")), begins("two", b"the ", b"whole"))
    assert whole(replicas)[1] == b"the whole"


def test_a_response_s_events_are_forwarded_until_they_break_off() -> None:
    pieces = [b"event: response.created\ndata: {}\n\n", b"event: response.in_progress\n"]
    replicas = Replicas(begins("one", *pieces, GONE))
    found = list[bytes]()

    async def run() -> None:
        answer = Answer(replicas, ASKED)
        await answer.head()
        async for piece in answer.pieces():
            found.append(piece)

    with pytest.raises(ActorUnavailableError):
        asyncio.run(run())
    assert found == pieces
    assert (len(replicas.asked), replicas.cancelled) == (1, 1)


def test_who_leaves_is_not_served_any_longer() -> None:
    replicas = Replicas(begins("one", event("Once "), event("upon")))

    async def run() -> None:
        answer = Answer(replicas, ASKED)
        events: AsyncIterator[bytes] = answer.events(await answer.head())
        assert await anext(events) == event("Once ")
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())
    assert replicas.cancelled == 1
