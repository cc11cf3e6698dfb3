"""The choices of one request, generated at once; the later ones of a prompt find its KV in the prefix cache, since they
are asked for when the first has begun its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from covey.front.admission import Caller
from covey.front.asked import Asked
from covey.front.door import Door
from covey_client.response import Chunk, Completion


async def parts(door: Door, caller: Caller, asked: Sequence[Asked], n: int) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Chunks with the index of their choice, as they come. `n` choices have the same prompt."""
    if len(asked) == 1:
        async with door.stream(asked[0], caller) as stream:
            async for chunk in stream:
                yield 0, chunk
        return
    came: asyncio.Queue[tuple[int, Chunk | Exception]] = asyncio.Queue(1)  # whoever reads slowly is waited for
    begun = [asyncio.Event() for _ in asked[::n]]

    async def one(index: int) -> None:
        try:
            if index % n:
                await begun[index // n].wait()
            async with door.stream(asked[index], caller) as stream:
                async for chunk in stream:
                    begun[index // n].set()
                    await came.put((index, chunk))
        except Exception as error:
            await came.put((index, error))

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(asked))]
    try:
        left = len(asked)
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


async def whole(door: Door, caller: Caller, asked: Sequence[Asked], n: int) -> list[Chunk]:
    """The answers in their order."""
    if len(asked) == 1:
        return [await door.whole(asked[0], caller)]
    found: list[list[Chunk]] = [[] for _ in asked]
    async with aclosing(parts(door, caller, asked, n)) as coming:
        async for index, chunk in coming:
            found[index].append(chunk)
    return [Completion.join(each) for each in found]
