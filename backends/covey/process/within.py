"""A bounded wait that loses no cancellation, which `asyncio.wait_for` does where the result is there just then, up to
Python 3.11."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def within(seconds: float, coming: Awaitable[Result]) -> Result:
    """Return the result, or cancel what is not there in time and raise asyncio.TimeoutError."""
    task = asyncio.ensure_future(coming)
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait({task})
