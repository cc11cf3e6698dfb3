"""Generates the choices of one request at once. Later choices start when the first has begun its answer, so they find
their prompt's KV in the prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from covey.front.admission import Caller
from covey.front.gateway import Gateway
from covey.front.inference_request import InferenceRequest
from covey_client.response import Chunk, Completion


async def parts(
    gateway: Gateway, caller: Caller, requests: Sequence[InferenceRequest], n: int
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Yield chunks with the index of their choice, in order of arrival. `n` choices share a prompt."""
    if len(requests) == 1:
        async with gateway.stream(requests[0], caller) as stream:
            async for chunk in stream:
                yield 0, chunk
        return
    came: asyncio.Queue[tuple[int, Chunk | Exception]] = asyncio.Queue(1)  # waits for a slow reader
    begun = [asyncio.Event() for _ in requests[::n]]

    async def one(index: int) -> None:
        try:
            if index % n:
                await begun[index // n].wait()
            async with gateway.stream(requests[index], caller) as stream:
                async for chunk in stream:
                    begun[index // n].set()
                    await came.put((index, chunk))
        except Exception as error:
            await came.put((index, error))

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(requests))]
    try:
        left = len(requests)
        while left:
            index, found = await came.get()
            if isinstance(found, Exception):
                raise found
            yield index, found
            left -= bool(found.finish_reason)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def whole(gateway: Gateway, caller: Caller, requests: Sequence[InferenceRequest], n: int) -> list[Chunk]:
    """Return the whole answers in the order of the requests."""
    found: list[list[Chunk]] = [[] for _ in requests]
    async with aclosing(parts(gateway, caller, requests, n)) as coming:
        async for index, chunk in coming:
            found[index].append(chunk)
    return [Completion.join(each) for each in found]
