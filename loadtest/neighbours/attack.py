"""What a tenant does to its neighbours; in a process of its own, `python -m loadtest.neighbours.attack`, until it is
ended. Says `begun` when it has begun."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from covey_client import AsyncClient, CoveyClientError

BOMB = "word " * 200_000  # a million bytes, refused
FLOOD, BOMBS, STREAMS = "flood", "bombs", "streams"
CALLERS = {FLOOD: 64, BOMBS: 4, STREAMS: 400}
QUESTION = "User: Do you like films?\nAssistant:"
REST_SECONDS = 0.05  # after a refusal
SETTLE_SECONDS = 3.0
NICE = 10  # a tenth of a processor that others want: what it computes would be another machine's


async def _call(client: AsyncClient, way: str) -> None:
    if way == STREAMS:
        async for _chunk in client.stream(QUESTION, max_tokens=256, min_tokens=256, temperature=1.0):
            pass
    else:
        await client.generate(BOMB if way == BOMBS else QUESTION, max_tokens=4)


async def _again_and_again(client: AsyncClient, way: str) -> None:
    while True:
        try:
            await _call(client, way)
        except CoveyClientError:
            await asyncio.sleep(REST_SECONDS)


async def _attack(url: str, key: str, way: str) -> None:
    async with AsyncClient(url, headers={"authorization": f"Bearer {key}"}) as client:
        callers = [asyncio.create_task(_again_and_again(client, way)) for _ in range(CALLERS[way])]
        await asyncio.sleep(SETTLE_SECONDS)
        print("begun", flush=True)
        await asyncio.gather(*callers)


def main(arguments: Sequence[str]) -> None:
    """The gRPC port of a front, and which attack; the key comes on the standard input."""
    os.nice(NICE)
    with suppress(OSError):  # where sessions share processors and not processes; this one has its own
        Path("/proc/self/autogroup").write_text(str(NICE))
    with suppress(KeyboardInterrupt):
        asyncio.run(_attack(arguments[0], sys.stdin.readline().strip(), arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
