"""Which models' processes have ended, told by the kernel: one that nobody asks anything would else be missed late. And
which could not be loaded: whoever had them loaded may have ended meanwhile."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence

from covey.server import processes
from covey.server.control import FAILED, Control

LOOK_SECONDS = 0.25
FIND_EVERY = 4  # looks, between two searches for processes of models that have none yet


class Ends:
    """Follows the processes of some models of one server. Looked at by one thread."""

    def __init__(self, server: int, models: Sequence[str], control: Control, died: Callable[[str], None]) -> None:
        """`died` is told of a model whose process ended while Triton takes it for ready: it was not unloaded; and of
        one whose load failed, again and again."""
        self._server, self._models = server, models
        self._control, self._died = control, died
        self._followed: dict[int, str] = {}  # pidfd -> model
        self._untold: list[str] = []  # models that have ended while the server did not say whether they were unloaded
        self._looks = 0
        self._ends = select.poll()

    def look(self) -> None:
        """Tell of the models whose process has ended since the last look. Raises ControlError where the server does not
        say more; that is asked again."""
        self._untold += self._ended()
        absent = self._find() if self._looks % FIND_EVERY == 0 else []
        self._looks += 1
        states = self._control.states() if self._untold or absent else {}
        for model in absent:
            if states.get(model) == FAILED:
                self._died(model)
        while self._untold:
            if states.get(self._untold[-1]) == "READY":
                self._died(self._untold[-1])
            self._untold.pop()

    def close(self) -> None:
        while self._followed:
            os.close(self._followed.popitem()[0])

    def _ended(self) -> list[str]:
        ended = []
        for fd, _event in self._ends.poll(0):
            self._ends.unregister(fd)
            os.close(fd)
            ended.append(self._followed.pop(fd))
        return ended

    def _find(self) -> list[str]:
        """Follow who came; returns the models without a process."""
        lacking = set(self._models) - set(self._followed.values())
        running = processes.by_model(self._server) if lacking else {}
        for model in lacking & running.keys():
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(running[model][0])
                self._followed[fd] = model
                self._ends.register(fd, select.POLLIN)
        return sorted(lacking - running.keys())
