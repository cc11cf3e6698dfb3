"""A bounded wait hears of a result, of the time and of a cancellation, also where two of them come at once."""

from __future__ import annotations

import asyncio

import pytest

from covey.process.within import within


def test_a_result_in_time_is_returned_and_a_late_one_is_cancelled() -> None:
    async def run() -> None:
        assert await within(5.0, asyncio.sleep(0, "here")) == "here"
        late = asyncio.ensure_future(asyncio.sleep(60))
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, late)
        assert late.cancelled()

    asyncio.run(run())


def test_a_cancellation_that_comes_with_the_result_is_not_lost() -> None:
    async def run() -> None:
        coming = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(within(5.0, coming))
        await asyncio.sleep(0)
        coming.set_result("here")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_what_is_waited_for_raises_its_own_error_and_is_cancelled_with_who_waits() -> None:
    async def fails() -> None:
        raise EOFError

    async def run() -> None:
        with pytest.raises(EOFError):
            await within(5.0, fails())
        coming = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(within(5.0, coming))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert coming.cancelled()

    asyncio.run(run())
