"""How the front learns the length of the longest request from a metrics port that may hang."""

from __future__ import annotations

import asyncio
import time

import pytest

from covey.front import gateway
from covey.front.gateway import Longest
from covey_client.errors import ConnectionLost
from tests.fakes import ManualClock

TOLD = b'covey_target_info{pool_tokens="3200",longest="2048"} 1\n'


class Port:
    """A metrics port."""

    def __init__(self) -> None:
        self.asked, self.answer = 0, TOLD
        self.hung = asyncio.Event()
        self.hung.set()

    async def metrics(self) -> bytes:
        self.asked += 1
        await self.hung.wait()
        if not self.answer:
            raise ConnectionLost("no answer")
        return self.answer


def test_a_length_is_read_once_in_ten_seconds() -> None:
    async def act() -> None:
        port, clock = Port(), ManualClock()
        told = Longest(port.metrics, clock.now)
        assert await asyncio.gather(*(told.tokens() for _ in range(5))) == [2048] * 5
        clock.sleep(9.9)
        assert (await told.tokens(), port.asked) == (2048, 1)
        clock.sleep(0.2)
        port.hung.clear()
        assert await told.tokens() == 2048, "the last one, while another reading hangs"
        await asyncio.sleep(0)
        assert port.asked == 2

    asyncio.run(act())


def test_a_failure_is_told_for_ten_seconds_as_well() -> None:
    async def act() -> None:
        port, clock = Port(), ManualClock()
        told, port.answer = Longest(port.metrics, clock.now), b""
        assert [await told.tokens() for _ in range(3)] == [None] * 3
        assert port.asked == 1
        port.answer = TOLD
        clock.sleep(10.1)
        assert await told.tokens() == 2048

    asyncio.run(act())


def test_nobody_waits_in_line_for_a_port_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "WAIT_SECONDS", 0.05)

    async def act() -> None:
        port = Port()
        port.hung.clear()
        told, began = Longest(port.metrics), time.monotonic()
        assert await asyncio.gather(*(told.tokens() for _ in range(100))) == [None] * 100
        assert (port.asked, time.monotonic() - began < 2.0) == (1, True)

    asyncio.run(act())
