"""Which models' processes have ended, told by the kernel: one that nobody asks anything would else be missed late."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from covey.server import processes
from covey.server.control import Control, ControlError

LOOK_SECONDS = 0.25
FIND_SECONDS = 1.0  # between two searches for processes of models that have none yet
log = logging.getLogger("covey.ends")


class Ends:
    """Follows the processes of some models of one server. Looked at by one thread."""

    def __init__(self, server: int, models: Sequence[str]) -> None:
        self._server, self._models = server, models
        self._followed: dict[int, str] = {}  # pidfd -> model
        self._found_at = -FIND_SECONDS
        self._ends = select.poll()

    def look(self, now: float) -> list[str]:
        """The models whose process has ended since the last look. One that was unloaded has ended too."""
        if len(self._followed) < len(self._models) and now - self._found_at >= FIND_SECONDS:
            self._found_at = now
            self._find()
        ended = []
        for fd, _event in self._ends.poll(0):
            self._ends.unregister(fd)
            os.close(fd)
            ended.append(self._followed.pop(fd))
        return ended

    def close(self) -> None:
        while self._followed:
            os.close(self._followed.popitem()[0])

    def _find(self) -> None:
        running, followed = processes.by_model(self._server), set(self._followed.values())
        for model in self._models:
            # Triton waits for none that died within a call: it stays as a zombie.
            living = [pid for pid in running.get(model, ()) if not processes.is_zombie(pid)]
            if model in followed or not living:
                continue
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(living[0])
                self._followed[fd] = model
                self._ends.register(fd, select.POLLIN)


class EndsWatch:
    """Looks from a thread of its own until it is stopped."""

    def __init__(self, ends: Ends, control: Control, died: Callable[[str], None]) -> None:
        """`died` is told of a model whose process ended while Triton takes it for ready: it was not unloaded."""
        self._ends, self._control, self._died = ends, control, died
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ends", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._ends.close()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            for model in self._ends.look(time.monotonic()):
                try:
                    if self._control.states().get(model) == "READY":
                        self._died(model)
                except ControlError as error:
                    log.warning("whether %s died is not known: %s", model, error)
