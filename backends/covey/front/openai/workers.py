"""The front's text workers: one for short texts and one for long ones, so that no chat waits for a megabyte."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from covey.front.fair_queue import FairQueue, Job
from covey.front.openai.text_processor import WorkerReply
from covey.front.openai.worker import LENGTH, LONG_BYTES
from covey.supervision import processes
from covey_client.errors import InvalidRequest, ServerError
from covey_client.rendering import KILLED, SECONDS, too_long

PATIENT_SECONDS = 60.0  # for an answer on any machine; the worker itself bounds slow work
PAUSED_SECONDS = 2.0  # without an answer, after which a process that is paused is ended
REAP_SECONDS = 1.0  # for the status of an ended process to arrive
WAITING_MESSAGES = 8  # of maximal length that may wait at each worker
log = logging.getLogger("covey.front")


class Workers:
    """Must be created in the event loop. Each worker starts at its first use."""

    def __init__(self, prompt_bytes: int, message_bytes: int, seconds: float = SECONDS) -> None:
        words = [sys.executable, "-m", "covey.front.openai.worker", str(prompt_bytes), str(seconds)]
        most = WAITING_MESSAGES * message_bytes
        self._workers = {False: _Worker(words, seconds, most), True: _Worker([*words, "--nice"], seconds, most)}

    async def ask(self, job: Job, folder: str, act: str, *given: Any) -> Any:
        """Return the result of `act` of the folder's `TextProcessor`. Raises its errors, and Overloaded."""
        try:
            question = pickle.dumps((folder, act, given), pickle.HIGHEST_PROTOCOL)
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply") from None
        return await self._workers[job.size > LONG_BYTES].ask(job, question)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()


class _Worker:
    """A worker process, started again after it ends."""

    def __init__(self, words: Sequence[str], seconds: float, most_bytes: int) -> None:
        self._words, self._seconds = words, seconds
        self._process: asyncio.subprocess.Process | None = None
        self._queue = FairQueue(most_bytes)

    async def ask(self, job: Job, question: bytes) -> Any:
        return await self._queue.run(job, lambda: self._asked(question))

    async def _asked(self, question: bytes) -> Any:
        """Ask one question; the next must wait for the answer. If somebody else has ended or paused the process, ask a
        new one. Raises InvalidRequest or ServerError."""
        for again in (True, False):
            try:
                answer: WorkerReply = pickle.loads(await self._heard(question))
                break
            except (OSError, EOFError, TimeoutError, asyncio.TimeoutError):
                error = await self._ended()
                if not (again and isinstance(error, ServerError)):  # else it has not ended over this question
                    raise error from None
        if answer.error is not None:
            raise answer.error
        return answer.found

    async def _heard(self, question: bytes) -> bytes:
        """Wait for the answer. Raises TimeoutError if the process is paused or takes too long."""
        answering = asyncio.ensure_future(self._answer(question))
        try:
            for _ in range(int(PATIENT_SECONDS / PAUSED_SECONDS)):
                if (await asyncio.wait({answering}, timeout=PAUSED_SECONDS))[0]:
                    return answering.result()
                if self._process is not None and processes.state(self._process.pid) == "T":
                    break
            raise TimeoutError
        finally:
            answering.cancel()

    def end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)  # asyncio's kill would reap the process and lose its status

    async def _answer(self, question: bytes) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            process = self._process = await asyncio.create_subprocess_exec(
                *self._words, stdin=pipe, stdout=pipe, start_new_session=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(LENGTH.pack(len(question)))
        process.stdin.write(question)
        await process.stdin.drain()
        return await process.stdout.readexactly(LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))[0])

    async def _ended(self) -> Exception:
        """Return the error that tells a caller how the worker ended."""
        if self._process is None:
            return ServerError("cannot start the process for texts")
        try:
            status = await asyncio.wait_for(self._process.wait(), REAP_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            self.end()
            status = await self._process.wait()
        self._process = None
        if status == KILLED:
            return InvalidRequest(f"messages: {too_long(self._seconds)}", "messages")
        log.error("the process for texts ended with status %d", status)
        return ServerError("the process for texts ended and will be restarted; see the server's log")
