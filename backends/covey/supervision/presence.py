"""Tells a model's process which other models of its server have a process that answers, and kills one that does not
work.

The kernel reports the end of a process at once. `covey.supervision.supervisor` brings its model back.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from covey.process.worker import Thread
from covey.supervision import processes

A = TypeVar("A")
LOOK_SECONDS = 0.25
FIND_EVERY = 2  # looks between two searches for the processes of models that have none yet
NEW_SECONDS = 2.0  # a younger process is the successor of the one that failed


class Presence(Generic[A]):
    """Follows the processes of some models. One thread calls `look` periodically."""

    def __init__(
        self,
        server: int,
        models: Sequence[str],
        answers: Callable[[str], A],
        came: Callable[[str, A], None],
        ended: Callable[[str], None],
    ) -> None:
        """`answers` asks a model's process for its facts, and raises CoveyError while it gives none. `came`
        gets each process's facts, on the asking thread. `ended` gets the name of each model whose process has ended."""
        self._server, self._models = server, tuple(models)
        self._answers, self._came, self._ended = answers, came, ended
        self._followed: dict[int, tuple[str, int]] = {}  # pidfd -> model, process
        self._asked: dict[int, Future[None]] = {}  # by process that has not answered yet: the last question
        self._lock = threading.Lock()
        self._looks = 0
        self._ends = select.poll()

    def look(self) -> None:
        """Report the processes that ended since the last look, and ask new ones for their facts."""
        for fd, _event in self._ends.poll(0):
            self._ends.unregister(fd)
            os.close(fd)
            with self._lock:
                model, pid = self._followed.pop(fd)
            self._asked.pop(pid, None)
            self._ended(model)
        if self._looks % FIND_EVERY == 0:
            self._find()
        self._looks += 1

    def end(self, model: str) -> None:
        """Kill the model's process, which does not work. Its successor, if there is one already, is spared. Any
        thread."""
        with self._lock:
            followed = [pid for name, pid in self._followed.values() if name == model]
        processes.end(pid for pid in followed if processes.age(pid) > NEW_SECONDS)

    def close(self) -> None:
        """Close all handles. No look may be running or follow."""
        while self._followed:
            os.close(self._followed.popitem()[0])

    def _find(self) -> None:
        lacking = set(self._models) - {model for model, _pid in self._followed.values()}
        running = processes.by_model(self._server) if lacking else {}
        for model in lacking & running.keys():
            with contextlib.suppress(ProcessLookupError):
                pid = running[model][0]
                fd = os.pidfd_open(pid)
                with self._lock:
                    self._followed[fd] = model, pid
                self._ends.register(fd, select.POLLIN)
                self._asked[pid] = self._ask(model)
        for model, pid in self._followed.values():
            asked = self._asked.get(pid)
            if asked is not None and asked.done():
                if asked.exception() is None:
                    del self._asked[pid]
                else:
                    self._asked[pid] = self._ask(model)

    def _ask(self, model: str) -> Future[None]:
        """Ask in a new thread, which blocks for as long as the model does not answer."""

        def ask(name: str) -> None:
            self._came(name, self._answers(name))

        asking = Thread(f"ask {model}")
        answer = asking.submit(ask, model)
        asking.close()
        return answer
