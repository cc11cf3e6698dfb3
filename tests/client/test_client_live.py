"""The client against the real tritonserver: both flavours must behave alike."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from covey.launcher import Server
from covey_client import (
    AsyncClient,
    Cancelled,
    Chunk,
    Client,
    Completion,
    ConnectionLost,
    CoveyClientError,
    DeadlineExceeded,
    InvalidRequest,
    ServerError,
)
from tests.waiting import until

pytestmark = pytest.mark.e2e
Running = tuple[Server, Any]


class Way:
    """One flavour of the client; the async one runs its loop to the end."""

    def __init__(self, server: Server, flavour: str, model: str = "covey") -> None:
        self.url = server.grpc_url
        self.flavour = flavour
        self.model = model

    def generate(self, prompt: str | list[int], **settings: Any) -> Completion:
        if self.flavour == "sync":
            with Client(self.url, model=self.model, timeout=20) as client:
                return client.generate(prompt, **settings)

        async def run() -> Completion:
            async with AsyncClient(self.url, model=self.model, timeout=20) as client:
                return await client.generate(prompt, **settings)

        return asyncio.run(run())

    def stream(self, prompt: str, take: int = 1 << 30, **settings: Any) -> list[Chunk]:
        """The first `take` chunks; then the stream is left."""
        found: list[Chunk] = []
        if self.flavour == "sync":
            with (
                Client(self.url, model=self.model, timeout=20) as client,
                client.stream(prompt, **settings) as stream,
            ):
                for chunk in stream:
                    found.append(chunk)
                    if len(found) >= take:
                        break
            return found

        async def run() -> None:
            async with (
                AsyncClient(self.url, model=self.model, timeout=20) as client,
                client.stream(prompt, **settings) as stream,
            ):
                async for chunk in stream:
                    found.append(chunk)
                    if len(found) >= take:
                        break

        asyncio.run(run())
        return found


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest, canned_server: Running) -> Way:
    return Way(canned_server[0], request.param)


def test_a_completion_has_everything(way: Way) -> None:
    found = way.generate("count 4")
    assert found.text == "w0 w1 w2 w3 "
    assert found.tokens == (0, 1, 2, 3)
    assert found.log_probs == (-0.5,) * 4
    assert found.finish_reason == "length"
    assert found.seed == (1 << 64) - 3
    assert found.usage.output_tokens == 4
    assert found.usage.accepted_draft_tokens == 2
    assert found.usage.acceptance_rate == 0.25


def test_a_stream_brings_the_same_in_pieces(way: Way) -> None:
    chunks = way.stream("count 4")
    assert [chunk.text for chunk in chunks] == ["w0 ", "w1 ", "w2 ", "w3 "]
    assert [chunk.finish_reason for chunk in chunks] == ["", "", "", "length"]
    assert Completion.join(chunks) == way.generate("count 4")


def test_one_token_and_no_token_are_lists_too(way: Way) -> None:
    assert way.generate("count 1").tokens == (0,)
    assert way.generate("count 0").tokens == ()


def test_every_setting_arrives_as_it_was_given(way: Way) -> None:
    settings = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "stop_words": ["é", "x y"],
        "bad_words": ["one"],
        "seed": (1 << 64) - 1,
        "return_log_probs": True,
        "exclude_input_in_output": False,
        "verification": "coupled",
        "speculation": "fixed:3",
        "tenant": "t",
    }
    given = json.loads(way.generate("settings", **settings, top_p=None).text)
    assert given == settings | {"text_input": "settings", "stream": False}


def test_token_ids_instead_of_text(way: Way) -> None:
    assert way.generate([5, 6]).tokens == (0, 1, 2)


def test_the_unary_model_answers_the_same(way: Way) -> None:
    unary = Way.__new__(Way)
    unary.__dict__ = way.__dict__ | {"model": "covey_unary"}
    assert unary.generate("count 4") == way.generate("count 4")


@pytest.mark.parametrize(
    ("message", "kind", "field"),
    [
        ("[INVALID_ARG] max_tokens: got -1, allowed: 1 or more", InvalidRequest, "max_tokens"),
        ("something else", ServerError, None),
    ],
)
def test_errors_are_typed(way: Way, message: str, kind: type[CoveyClientError], field: str | None) -> None:
    for call in (way.generate, way.stream):
        with pytest.raises(kind) as caught:
            call(f"error {message}")
        assert type(caught.value) is kind
        if field is not None:
            assert cast(InvalidRequest, caught.value).field == field


def test_an_error_in_mid_stream_comes_after_what_was_sent(way: Way) -> None:
    with pytest.raises(ServerError, match="the target failed"):
        way.stream("late 5")


def test_a_stream_that_ends_early_is_no_answer(way: Way) -> None:
    with pytest.raises(ConnectionLost, match="before it was complete"):
        way.stream("short")


def test_wrong_settings_do_not_reach_the_server(way: Way) -> None:
    with pytest.raises(InvalidRequest) as caught:
        way.generate("count 3", temprature=1.0)
    assert caught.value.field == "temprature"


def test_a_model_that_is_not_there(way: Way) -> None:
    way.model = "covet"
    with pytest.raises(InvalidRequest) as caught:
        way.generate("count 3")
    assert caught.value.field == "model"


def test_leaving_a_stream_cancels_it_on_the_server(way: Way, canned_server: Running) -> None:
    mark: Path = canned_server[1].marks / f"left-{way.flavour}"
    assert len(way.stream("slow 400", take=2, tenant=mark.name)) == 2
    until(mark.exists, seconds=5.0)


@pytest.mark.parametrize("prompt", ["slow 400", "hang"])
def test_a_deadline_ends_a_request_and_cancels_it(way: Way, canned_server: Running, prompt: str) -> None:
    mark: Path = canned_server[1].marks / f"{prompt}-{way.flavour}"
    for call in (way.generate, way.stream):
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
            call(prompt, timeout=0.3, tenant=mark.name)
        assert time.monotonic() - began < 5
    until(mark.exists, seconds=5.0)


def test_cancel_from_another_thread(canned_server: Running) -> None:
    with Client(canned_server[0].grpc_url, timeout=20) as client:
        stream = client.stream("hang")
        threading.Timer(0.2, stream.cancel).start()
        with pytest.raises(Cancelled):
            next(stream)


def test_cancel_from_another_task(canned_server: Running) -> None:
    way = Way(canned_server[0], "async")

    async def run() -> None:
        async with AsyncClient(way.url, timeout=20) as client:
            stream = client.stream("slow 400")
            asyncio.get_running_loop().call_later(0.2, stream.cancel)
            with pytest.raises(Cancelled):
                async for _ in stream:
                    pass
            waiting = asyncio.create_task(client.generate("hang"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())


def test_closing_a_client_ends_its_calls(canned_server: Running) -> None:
    way = Way(canned_server[0], "sync")
    client = Client(way.url, timeout=20)
    stream = client.stream("hang")
    threading.Timer(0.3, client.close).start()
    with pytest.raises(Cancelled):
        next(stream)

    async def run() -> None:
        async with AsyncClient(way.url, timeout=20) as client:
            waiting = [asyncio.create_task(client.generate("hang")) for _ in range(2)]
            await asyncio.sleep(0.3)
            await client.close()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in found] == [Cancelled] * 2

    asyncio.run(run())


def test_many_streams_share_a_client(canned_server: Running) -> None:
    way = Way(canned_server[0], "async")

    async def run() -> list[Completion]:
        async with AsyncClient(way.url, timeout=30) as client:

            async def one(count: int) -> Completion:
                async with client.stream(f"count {count}") as stream:
                    return Completion.join([chunk async for chunk in stream])

            return await asyncio.gather(*(one(count) for count in range(1, 33)))

    assert [len(found.tokens) for found in asyncio.run(run())] == list(range(1, 33))


def test_nobody_listens(way: Way) -> None:
    way.url = "127.0.0.1:9"
    with pytest.raises(ConnectionLost):
        way.generate("count 3")


def test_a_stub_that_dies_is_an_error_within_the_deadline(canned_server: Running) -> None:
    way = Way(canned_server[0], "sync", "doomed")
    with pytest.raises((ServerError, DeadlineExceeded, ConnectionLost)):
        way.generate("die", timeout=3)
    assert Way(canned_server[0], "sync").generate("count 2").tokens == (0, 1)


def test_a_killed_server_is_an_error_with_a_reason(canned_folder: Callable[[], Any]) -> None:
    with canned_folder().server("covey") as server:
        ways = [Way(server, flavour) for flavour in ("sync", "async")]
        caught: list[BaseException] = []

        def run(way: Way) -> None:
            try:
                way.stream("slow 400")
            except CoveyClientError as error:
                caught.append(error)

        threads = [threading.Thread(target=run, args=(way,)) for way in ways]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        os.kill(server.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(10)
        assert [type(error) for error in caught] == [ConnectionLost] * 2
        assert all(str(error) for error in caught)
