"""A wait with a timeout that loses no cancellation. Up to Python 3.11, `asyncio.wait_for` may lose one that comes
together with the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def within(seconds: float, coming: Awaitable[Result]) -> Result:
    """Return the result. Cancel it and raise asyncio.TimeoutError if it takes longer."""
    task = asyncio.ensure_future(coming)
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait({task})
