"""Bounds for everybody and for one address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Send

from covey.contracts.profile import FrontSettings
from covey.front.admission import OF_ADDRESS, Admission, Caller
from covey.front.failures import TooMany, kind, retry_after
from covey.front.http_calls import HttpCall, Posted
from covey.front.spans import RequestSpans
from covey_client.errors import InvalidRequest, Overloaded
from tests.fakes import ManualClock

SETTINGS = FrontSettings(message_bytes=16 << 10, connections=8, requests=4, rate=10.0)


@contextmanager
def request(admission: Admission, caller: str, size: int = 0) -> Iterator[None]:
    admission.announce(caller, size)
    with admission.in_flight(caller):
        yield


def asked(admission: Admission, caller: str, size: int = 0) -> None:
    with request(admission, caller, size):
        pass


def test_a_caller_has_its_rate_and_what_it_saved_and_others_their_own() -> None:
    clock = ManualClock()
    admission = Admission(SETTINGS, clock.now)
    for _ in range(41):
        asked(admission, "a")
    with pytest.raises(TooMany) as caught:
        asked(admission, "a")
    assert retry_after(caught.value) == 1
    assert kind(caught.value).http == 429
    asked(admission, "b")
    clock.sleep(1.0)
    for _ in range(10):
        asked(admission, "a")
    with pytest.raises(TooMany):
        asked(admission, "a")


def test_a_refused_caller_is_never_told_to_ask_again_at_once() -> None:
    for said, seconds in (("try again in 0 s", 1), ("try again in 3 s", 3), ("busy", 1)):
        assert retry_after(Overloaded(said)) == seconds
    assert retry_after(InvalidRequest("try again in 3 s")) is None


def test_requests_that_are_admitted_wait_for_no_turn_and_others_do() -> None:
    admission = Admission(FrontSettings(), ManualClock().now)
    for _ in range(1000):
        assert admission.charge_read("a") == 0.0
        admission.refund_read("a")
    waits = [admission.charge_read("b") for _ in range(1000)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] > 1.0


def test_all_together_have_no_more_requests_than_all() -> None:
    admission = Admission(SETTINGS, ManualClock().now)
    with ExitStack() as held:
        for caller in "aabb":
            held.enter_context(request(admission, caller))
        with pytest.raises(Overloaded) as caught:
            asked(admission, "c")
        assert kind(caught.value).http == 503
        assert retry_after(caught.value) == 1
    asked(admission, "a")


def test_a_drain_ends_with_the_last_request_and_takes_none_that_was_only_announced() -> None:
    admission = Admission(SETTINGS, ManualClock().now)
    with request(admission, "a"):
        admission.announce("b", 1)
        admission.draining = True
        with pytest.raises(Overloaded, match="draining"), admission.in_flight("b"):
            pass
        assert not admission.drained
    assert admission.drained


def test_callers_are_forgotten() -> None:
    admission = Admission(SETTINGS, ManualClock().now)
    for index in range(10_050):
        asked(admission, str(index))
    assert len(admission._buckets) == 10_000
    assert not admission._requests


Answer = Callable[[HttpCall], Awaitable[None]]


def posted(admission: Admission, answer: Answer, send: Send, body: bytes = b"{}") -> None:
    """A body whose length was not announced comes from the address "a", which stays until it is answered."""
    gateway: Any = SimpleNamespace(
        admission=admission,
        spans=RequestSpans(None),
        announced=lambda caller, size: admission.announce(caller.name, size),
        admitted=lambda caller: admission.in_flight(caller.name),
    )
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Event().wait() or {}

    async def answering(call: HttpCall, _body: bytes) -> None:
        await answer(call)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": ("a", 1)}
    asyncio.run(Posted(gateway, answering)(scope, receive, send))


@pytest.mark.parametrize("streams", [False, True])
def test_who_has_the_whole_answer_may_ask_again(streams: bool) -> None:
    """A caller of one request at a time asks the next when it has the last byte, whatever the loop does meanwhile."""
    admission = Admission(SETTINGS, ManualClock().now)
    in_flight = []

    async def send(message: Message) -> None:
        in_flight.append(sum(admission._requests.values()))
        if message["type"] == "http.response.body" and not message.get("more_body"):
            asyncio.get_running_loop().call_soon(lambda: in_flight.append(sum(admission._requests.values())))

    async def answer(call: HttpCall) -> None:
        if streams:
            await call.event(b"x")
            await call.end()
        else:
            await call.json({})

    posted(admission, answer, send)
    assert in_flight[-2:] == [1, 0]


def test_a_body_whose_length_was_not_announced_is_charged_when_it_is_here() -> None:
    admission = Admission(FrontSettings(rate=0.01, message_bytes=1 << 16), ManualClock().now)  # 1 request, and 64 KiB
    sizes: list[int] = []

    async def answer(call: HttpCall) -> None:
        sizes.append(call.job.size)

    posted(admission, answer, lambda _message: asyncio.sleep(0), bytes(40 << 10))
    assert sizes == [40 << 10]
    with pytest.raises(TooMany):
        posted(admission, answer, lambda _message: asyncio.sleep(0), bytes(40 << 10))
    assert len(sizes) == 1


def test_an_address_is_a_tenant_and_may_name_a_few_others() -> None:
    clock = ManualClock()
    admission = Admission(FrontSettings(tenants=2, answer_seconds=60.0), clock.now)
    assert admission.tenant(Caller("a"), "") != admission.tenant(Caller("b"), "")
    with pytest.raises(InvalidRequest, match="begin with"):
        admission.tenant(Caller("a"), admission.tenant(Caller("b"), ""))
    for name in ("gold", "iron", "gold"):
        assert admission.tenant(Caller("a"), name) == name
    clock.time = 50.0
    assert admission.tenant(Caller("a"), "gold") == "gold"
    clock.time = 59.0
    with pytest.raises(TooMany, match=r"more than 2 tenants .* in 1 s"):
        admission.tenant(Caller("a"), "tin")
    assert admission.tenant(Caller("a"), "").startswith(OF_ADDRESS)
    assert admission.tenant(Caller("b"), "tin") == "tin"
    clock.time = 60.0
    assert admission.tenant(Caller("a"), "tin") == "tin"
    with pytest.raises(TooMany):
        admission.tenant(Caller("a"), "iron")
    assert admission.tenant(Caller("key x", "x"), "") == "x"
