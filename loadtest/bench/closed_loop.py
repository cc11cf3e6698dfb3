"""Asks over a network in a closed loop: callers of one event loop, each of whom takes the next message when its last
answer is complete.

The client shares the server's cores, so it does as little as it can while the clock runs: messages are built before,
what comes is kept with its time and read after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

M = TypeVar("M")
R = TypeVar("R")
Came = list[tuple[float, R]]  # when something came, and what
Raw = tuple[float, Came[R]]  # when it was asked, and what came


async def closed_loop(
    messages: Sequence[M], callers: Sequence[Callable[[M], Awaitable[Came[R]]]]
) -> tuple[float, list[Raw[R]]]:
    """Return the seconds, and what came of each message."""
    raw: list[Raw[R]] = [(0.0, [])] * len(messages)
    waiting = iter(enumerate(messages))

    async def run(ask: Callable[[M], Awaitable[Came[R]]]) -> None:
        for index, message in waiting:
            started = time.perf_counter()
            raw[index] = (started, await ask(message))

    started = time.perf_counter()
    await asyncio.gather(*map(run, callers))
    return time.perf_counter() - started, raw
