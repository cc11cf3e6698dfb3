"""Ends processes of a server that somebody has paused (SIGSTOP) and not let go on within a bound.

A paused process answers nobody, and one that goes on after a while finds locks of Triton's that have timed out, which
ends all of tritonserver. One that is killed is brought back: a model's by the orchestrator or `covey.server.revival`,
tritonserver by the launcher. A process under a debugger is in another state and left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading

from covey.server import processes

BOUND_SECONDS = 2.0
LOOK_SECONDS = 0.5
FIND_EVERY = 20  # looks, between two searches for the processes of models that were loaded meanwhile
log = logging.getLogger("covey.paused")


class Paused:
    """Owns since when each process of one server has been paused."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._names: dict[int, str] = {}
        self._since: dict[int, float] = {}
        self._looks = 0

    def look(self, now: float) -> list[str]:
        """Kill whoever has been paused for too long; returns their names."""
        states = {pid: processes.state(pid) for pid in self._names}
        if self._looks % FIND_EVERY == 0 or not all(states.values()):
            self._names = {pid: name for name, pid in processes.named(self._server).items()}
            states = {pid: processes.state(pid) for pid in self._names}
        self._looks += 1
        self._since = {pid: self._since.get(pid, now) for pid, state in states.items() if state == "T"}
        killed = []
        for pid, since in self._since.items():
            if now - since >= BOUND_SECONDS:
                log.warning("%s has been paused for %.1f s and is killed", self._names[pid], now - since)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed.append(self._names[pid])
        return killed


class PausedWatch:
    """Looks from a thread of its own until it is stopped."""

    def __init__(self, server: int) -> None:
        self._paused = Paused(server)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paused", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        seconds = 0.0  # of its own looks: while this process was paused itself nobody could be let go on
        while not self._stopped.wait(LOOK_SECONDS):
            seconds += LOOK_SECONDS
            self._paused.look(seconds)
