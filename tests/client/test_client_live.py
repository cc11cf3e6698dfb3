"""The client against the real tritonserver: both flavours must behave alike."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

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
        if self.flavour == "sync":
            with Client(self.url, model=self.model, timeout=20) as client, client.stream(prompt, **settings) as stream:
                return list(itertools.islice(stream, take))

        async def run() -> list[Chunk]:
            found: list[Chunk] = []
            async with (
                AsyncClient(self.url, model=self.model, timeout=20) as client,
                client.stream(prompt, **settings) as stream,
            ):
                async for chunk in stream:
                    found.append(chunk)
                    if len(found) >= take:
                        break
            return found

        return asyncio.run(run())


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

    assert way.generate("count 1").tokens == (0,)
    assert way.generate("count 0").tokens == ()
    assert way.generate([5, 6]).tokens == (0, 1, 2), "ids instead of a text"


def test_a_stream_and_the_unary_model_bring_the_same(way: Way) -> None:
    chunks, whole = way.stream("count 4"), way.generate("count 4")
    assert [chunk.text for chunk in chunks] == ["w0 ", "w1 ", "w2 ", "w3 "]
    assert [chunk.finish_reason for chunk in chunks] == ["", "", "", "length"]
    assert Completion.join(chunks) == whole
    way.model = "covey_unary"
    assert way.generate("count 4") == whole


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


@pytest.mark.parametrize(
    ("prompt", "changed", "kind", "said"),
    [
        ("error [INVALID_ARG] max_tokens: got -1, allowed: 1 or more", {}, InvalidRequest, "^max_tokens: got -1"),
        ("error something else", {}, ServerError, "something else"),
        ("late 5", {}, ServerError, "the target failed"),
        ("short", {}, ConnectionLost, "before it was complete"),
        ("count 3", {"model": "covet"}, InvalidRequest, "^Request for unknown model: 'covet'"),
        ("count 3", {"url": "127.0.0.1:9"}, ConnectionLost, "127.0.0.1:9"),
    ],
)
def test_errors_are_typed(
    way: Way, prompt: str, changed: dict[str, str], kind: type[CoveyClientError], said: str
) -> None:
    way.__dict__.update(changed)
    for call in (way.generate, way.stream):
        with pytest.raises(kind, match=said) as caught:
            call(prompt)
        assert type(caught.value) is kind


def test_wrong_settings_do_not_reach_the_server(way: Way) -> None:
    with pytest.raises(InvalidRequest) as caught:
        way.generate("count 3", temprature=1.0)
    assert caught.value.field == "temprature"


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
    async def run() -> None:
        async with AsyncClient(canned_server[0].grpc_url, timeout=20) as client:
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
    url = canned_server[0].grpc_url
    client = Client(url, timeout=20)
    stream = client.stream("hang")
    threading.Timer(0.3, client.close).start()
    with pytest.raises(Cancelled):
        next(stream)

    async def run() -> None:
        async with AsyncClient(url, timeout=20) as client:
            waiting = [asyncio.create_task(client.generate("hang")) for _ in range(2)]
            await asyncio.sleep(0.3)
            await client.close()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in found] == [Cancelled] * 2

    asyncio.run(run())


def test_a_stub_that_dies_is_an_error_within_the_deadline(canned_server: Running) -> None:
    way = Way(canned_server[0], "sync", "doomed")
    with pytest.raises((ServerError, DeadlineExceeded, ConnectionLost)):
        way.generate("die", timeout=3)
    assert Way(canned_server[0], "sync").generate("count 2").tokens == (0, 1)
