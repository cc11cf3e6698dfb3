"""Bounds for everybody and for one address."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from covey.contracts.profile import FrontSettings
from covey.front.admission import OF_ADDRESS, Admission, Caller
from covey.front.failures import TooMany, kind, retry_after
from covey.front.http_calls import HttpCall, Posted
from covey.front.spans import RequestSpans
from covey_client.errors import InvalidRequest, Overloaded

SETTINGS = FrontSettings(message_bytes=16 << 10, connections=8, requests=4, rate=10.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def request(admission: Admission, caller: str, size: int = 0) -> Iterator[None]:
    admission.announce(caller, size)
    with admission.in_flight(caller):
        yield


def asked(admission: Admission, caller: str, size: int = 0) -> None:
    with request(admission, caller, size):
        pass


def test_a_caller_has_its_rate_and_what_it_saved_and_others_their_own() -> None:
    clock = Clock()
    admission = Admission(SETTINGS, clock)
    for _ in range(41):
        asked(admission, "a")
    with pytest.raises(TooMany) as caught:
        asked(admission, "a")
    assert retry_after(caught.value) == 1
    assert kind(caught.value).http == 429
    asked(admission, "b")
    clock.now = 1.0
    for _ in range(10):
        asked(admission, "a")
    with pytest.raises(TooMany):
        asked(admission, "a")


def test_a_refused_caller_is_never_told_to_ask_again_at_once() -> None:
    for said, seconds in (("try again in 0 s", 1), ("try again in 3 s", 3), ("busy", 1)):
        assert retry_after(Overloaded(said)) == seconds
    assert retry_after(InvalidRequest("try again in 3 s")) is None


def test_requests_that_are_admitted_wait_for_no_turn_and_others_do() -> None:
    admission = Admission(FrontSettings(), Clock())
    for _ in range(1000):
        assert admission.charge_read("a") == 0.0
        admission.refund_read("a")
    waits = [admission.charge_read("b") for _ in range(1000)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] > 1.0


def test_one_address_has_half_of_the_requests_and_all_together_no_more_than_all() -> None:
    admission = Admission(SETTINGS, Clock())
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(request(admission, "a"))
        with pytest.raises(TooMany):
            asked(admission, "a")
        for _ in range(2):
            held.enter_context(request(admission, "b"))
        with pytest.raises(Overloaded) as caught:
            asked(admission, "c")
        assert kind(caught.value).http == 503
        assert retry_after(caught.value) == 1
    asked(admission, "a")


def test_a_drain_ends_with_the_last_request_and_takes_none_that_was_only_announced() -> None:
    admission = Admission(SETTINGS, Clock())
    with request(admission, "a"):
        admission.announce("b", 1)
        admission.draining = True
        with pytest.raises(Overloaded, match="draining"), admission.in_flight("b"):
            pass
        assert not admission.drained
    assert admission.drained


def test_callers_are_forgotten() -> None:
    admission = Admission(SETTINGS, Clock())
    for index in range(10_050):
        asked(admission, str(index))
    assert len(admission._buckets) == 10_000
    assert not admission._requests


def gateway_of(admission: Admission) -> Any:
    return SimpleNamespace(
        admission=admission,
        spans=RequestSpans(None),
        announced=lambda caller, size: admission.announce(caller.name, size),
        admitted=lambda caller: admission.in_flight(caller.name),
    )


@pytest.mark.parametrize("streams", [False, True])
def test_who_has_the_whole_answer_may_ask_again(streams: bool) -> None:
    """A caller of one request at a time asks the next when it has the last byte, whatever the loop does meanwhile."""
    admission = Admission(SETTINGS, Clock())
    in_flight = []

    async def receive() -> Message:
        if in_flight == []:
            return {"type": "http.request", "body": b"{}", "more_body": False}
        return await asyncio.Event().wait() or {}

    async def send(message: Message) -> None:
        in_flight.append(sum(admission._requests.values()))
        if message["type"] == "http.response.body" and not message.get("more_body"):
            asyncio.get_running_loop().call_soon(lambda: in_flight.append(sum(admission._requests.values())))

    async def answering(call: HttpCall, _body: bytes) -> None:
        if streams:
            await call.event(b"x")
            await call.end()
        else:
            await call.json({})

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": ("a", 1)}
    asyncio.run(Posted(gateway_of(admission), answering)(scope, receive, send))
    assert in_flight[-2:] == [1, 0]


def test_a_body_whose_length_was_not_announced_is_charged_when_it_is_here() -> None:
    admission = Admission(FrontSettings(rate=0.01, message_bytes=1 << 16), Clock())  # 1 request, and 64 KiB
    sizes: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(40 << 10), "more_body": False}

    async def answering(call: HttpCall, _body: bytes) -> None:
        sizes.append(call.job.size)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": ("a", 1)}
    asyncio.run(Posted(gateway_of(admission), answering)(scope, receive, lambda _message: asyncio.sleep(0)))
    assert sizes == [40 << 10]
    with pytest.raises(TooMany):
        asyncio.run(Posted(gateway_of(admission), answering)(scope, receive, lambda _message: asyncio.sleep(0)))
    assert len(sizes) == 1


def test_an_address_is_a_tenant_and_may_name_a_few_others() -> None:
    clock = Clock()
    admission = Admission(FrontSettings(tenants=2, answer_seconds=60.0), clock)
    assert admission.tenant(Caller("a"), "") != admission.tenant(Caller("b"), "")
    with pytest.raises(InvalidRequest, match="begin with"):
        admission.tenant(Caller("a"), admission.tenant(Caller("b"), ""))
    for name in ("gold", "iron", "gold"):
        assert admission.tenant(Caller("a"), name) == name
    clock.now = 50.0
    assert admission.tenant(Caller("a"), "gold") == "gold"
    clock.now = 59.0
    with pytest.raises(TooMany, match=r"more than 2 tenants .* in 1 s"):
        admission.tenant(Caller("a"), "tin")
    assert admission.tenant(Caller("a"), "").startswith(OF_ADDRESS)
    assert admission.tenant(Caller("b"), "tin") == "tin"
    clock.now = 60.0
    assert admission.tenant(Caller("a"), "tin") == "tin"
    with pytest.raises(TooMany):
        admission.tenant(Caller("a"), "iron")
    assert admission.tenant(Caller("key x", "x"), "") == "x"
