"""A replica's process: it is there when it serves, and it never outlives the replica."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from covey_ray.engine import Engine, EngineEnded

HEALTH = "/health"
SERVES = (sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory")


def run(does: Callable[[Engine], Awaitable[None]]) -> Engine:
    made: list[Engine] = []

    async def main() -> None:
        engine = Engine()
        made.append(engine)
        try:
            await does(engine)
        finally:
            await engine.session.close()

    asyncio.run(main())
    return made[0]


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "http.server" in each.cmdline()]


def test_it_is_there_when_it_serves_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    (tmp_path / "metrics").write_text('covey_target_info{identity="here"} 1\nvllm:num_requests_running{} 2\n')

    async def does(engine: Engine) -> None:
        await engine.start([*SERVES, str(tmp_path)], HEALTH)
        await engine.check()
        assert [(each.name, each.value) for each in await engine.samples()] == [
            ("covey_target_info", 1),
            ("vllm:num_requests_running", 2),
        ]
        (tmp_path / "health").unlink()
        with pytest.raises(EngineEnded, match="does not answer"):
            await engine.check()
        engine.stop()
        engine.stop()
        with pytest.raises(EngineEnded):
            await engine.check()

    run(does)
    assert children() == []


def test_one_that_cannot_start_says_so() -> None:
    async def does(engine: Engine) -> None:
        with pytest.raises(EngineEnded, match="status 3"):
            await engine.start([sys.executable, "-c", "raise SystemExit(3)"], HEALTH)

    run(does)


def test_it_ends_with_the_thread_that_has_the_replica(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    there: list[psutil.Process] = []

    async def does(engine: Engine) -> None:
        await engine.start([*SERVES, str(tmp_path)], HEALTH)
        there.extend(children())

    with ThreadPoolExecutor(1) as threads:
        engine = threads.submit(run, does).result()
    (process,) = there
    assert process.wait(10) == -signal.SIGKILL
    engine.stop()
