"""Asks a process over a pipe, a line of JSON each way. Knows nothing of what it computes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict

PATIENCE = 600.0  # seconds for an answer: a busy machine is no error
LEAVE_SECONDS = 1.0  # for a process whose pipe was closed to end; one that computes is killed
TAIL = 600  # characters of its output in errors


class PipeError(CoveyError):
    """The process has ended, is silent, or answers with an error."""


class Pipe:
    """Owns the process, which ends with it."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                start_new_session=True,
            )
        except OSError as error:
            self._printed.close()
            raise PipeError(f"{name}: {words[0]} cannot be run: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._from, selectors.EVENT_READ)
        self._rest, self._closed = b"", False

    def call(self, method: str, *, patience: float = PATIENCE, **given: object) -> JsonDict:
        """Return the answer; `seconds` in it are what the call took there. Raises PipeError."""
        if self._closed:
            raise PipeError(f"{self.name}: {method}: it has ended")
        with suppress(OSError):  # it has ended: `_line` tells why
            self._to.write(json.dumps({"call": method, **given}).encode() + b"\n")
            self._to.flush()
        found: JsonDict = json.loads(self._line(method, patience))
        if "error" in found:
            raise PipeError(f"{self.name}: {method}: {found['error']}")
        return found

    def close(self) -> None:
        """End the process, and what it has started. May be called again."""
        if self._closed:
            return
        self._closed = True
        for stream in (self._to, self._from):
            with suppress(OSError):
                stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_SECONDS)
        with suppress(ProcessLookupError):  # it leads its own process group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        self._printed.close()

    def _line(self, method: str, patience: float) -> bytes:
        until = time.monotonic() + patience
        while b"\n" not in self._rest:
            if not self._selector.select(max(0.0, until - time.monotonic())):
                self.close()  # else the next call would read its late answer
                raise PipeError(f"{self.name}: {method}: no answer for {patience:g} s")
            got = os.read(self._from.fileno(), 1 << 16)
            if not got:
                status = self._process.wait()
                raise PipeError(f"{self.name}: {method}: it has ended with status {status}: {self._tail()}")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _tail(self) -> str:
        self._printed.seek(0)
        return self._printed.read().decode(errors="replace")[-TAIL:].strip()
