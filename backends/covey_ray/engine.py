"""A serving process on this node: Covey's launcher, or another command that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import socket
import subprocess
from collections.abc import Sequence

import aiohttp

from covey.launcher.process import LEAVE_SECONDS, end_with_thread
from covey_client.status import Sample, parse

HOST = "127.0.0.1"
LOOK_SECONDS = 0.2
SOON = aiohttp.ClientTimeout(5.0)  # for health and metrics
log = logging.getLogger("ray.serve")


class EngineEnded(Exception):
    """The process ended without being stopped."""


class Engine:
    """A server's process. Create and start it in a thread that lives as long: the process ends with that thread."""

    def __init__(self) -> None:
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        # when tritonserver ends, it waits for idle connections
        connector, forever = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=None)
        self.session = aiohttp.ClientSession(connector=connector, timeout=forever)

    async def start(self, words: Sequence[str], health: str) -> None:
        """Start the process, and return when its path `health` answers. {port} in `words` becomes its port."""
        port = free_port()
        self.url, self._health = f"http://{HOST}:{port}", health
        words = [word.replace("{port}", str(port)) for word in words]
        log.info("starting %s", shlex.join(words))
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=end_with_thread(signal.SIGKILL),  # noqa: PLW1509 - one system call
            )
            while not await self._answers():
                await asyncio.sleep(LOOK_SECONDS)
        except BaseException:
            self.stop(0.0)
            raise

    async def check(self) -> None:
        """Raise EngineEnded if it does not serve."""
        if not await self._answers():
            raise EngineEnded(f"{self.url}{self._health} does not answer: the server is restarting")

    async def samples(self) -> tuple[Sample, ...]:
        """Return all of the process's metrics, or none if it has no such page."""
        async with self.session.get(f"{self.url}/metrics", timeout=SOON) as answer:
            return parse(await answer.text(), "") if answer.status == 200 else ()

    def stop(self, seconds: float = LEAVE_SECONDS) -> None:
        """End the process; kill it if it has not ended after `seconds`. A second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            status = None if self._process is None else self._process.returncode
            raise EngineEnded(f"the replica's server ended (status {status}): see the replica's log")
        try:
            async with self.session.get(self.url + self._health, timeout=SOON) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False


def free_port() -> int:
    """Return a port that is free now. If another process takes it first, the start fails and Ray starts another
    replica."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
    return port
