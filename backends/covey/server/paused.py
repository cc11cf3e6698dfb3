"""Ends processes of a server that somebody has paused (SIGSTOP) and not let go on within a bound.

A paused process answers nobody, and one that goes on after a while finds locks of Triton's that have timed out, which
ends all of tritonserver. One that is killed is brought back: a model's by the orchestrator or `covey.server.revival`,
tritonserver by the launcher. A process under a debugger is in another state and left alone.
"""

from __future__ import annotations

import logging

from covey.server import processes

BOUND_SECONDS = 2.0
LOOK_SECONDS = 0.5
FIND_EVERY = 20  # looks, between two searches for the processes of models that were loaded meanwhile
log = logging.getLogger("covey.paused")


class Paused:
    """Owns for how many looks each process of one server has been paused."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._names: dict[int, str] = {}
        self._paused: dict[int, int] = {}  # process -> looks
        self._looks = 0

    def look(self) -> list[str]:
        """Called every LOOK_SECONDS. Kill whoever has been paused for too long; returns their names."""
        states = {pid: processes.state(pid) for pid in self._names}
        if self._looks % FIND_EVERY == 0 or not all(states.values()):
            self._names = processes.names(self._server)
            states = {pid: processes.state(pid) for pid in self._names}
        self._looks += 1
        self._paused = {pid: self._paused.get(pid, 0) + 1 for pid, state in states.items() if state == "T"}
        killed = []
        for pid, looks in self._paused.items():
            if (seconds := (looks - 1) * LOOK_SECONDS) >= BOUND_SECONDS:
                log.warning("%s has been paused for %.1f s and is killed", self._names[pid], seconds)
                processes.end([pid])
                killed.append(self._names[pid])
        return killed
