"""Which process is hurt how and when, and how long it takes until it is whole again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadtest.faults import spin
from loadtest.faults.launched import FRONT, SERVER, Launched

KILL, PAUSE, SPIN = "kill", "pause", "spin"
LOST_SECONDS = 120.0  # until a process that has not come back counts as lost
# The launcher gives a server up that has died ten times within ten minutes, and rests longer before each start, also of
# the front.
DEATHS, WINDOW_SECONDS = 4, 600.0


@dataclass
class Fault:
    """One process, hurt once."""

    process: str
    way: str
    pid: int
    at: float
    seconds: float | None = None  # until another process served in its place and the front said ready

    @property
    def kind(self) -> str:
        return f"{self.way} {self.process}"


def kinds(names: list[str]) -> list[tuple[str, str]]:
    """Process and way. Who spins is noticed where somebody waits for its answers within a time that is known."""
    watched = [name for name in names if name in (FRONT, SERVER, "target") or name.startswith("draft_")]
    ways = [(name, way) for way in (KILL, PAUSE) for name in names]
    return ways + [(name, SPIN) for name in watched if spin.possible()]


def turns(wanted: list[tuple[str, str]], drawn: random.Random) -> Iterator[tuple[str, str]]:
    """Each kind as often as any other, in an order of chance."""
    while True:
        yield from drawn.sample(wanted, len(wanted))


@dataclass
class Injection:
    """Hurts processes and watches them come back."""

    server: Launched
    open: list[Fault] = field(default_factory=list)
    done: list[Fault] = field(default_factory=list)

    def hurt(self, process: str, way: str) -> bool:
        """Whether there was such a process, unhurt, and it may die now."""
        recent = [fault for fault in self.done if time.monotonic() - fault.at < WINDOW_SECONDS]
        if process in (SERVER, FRONT) and sum(fault.process == process for fault in recent) >= DEATHS:
            return False
        pid = self.server.processes().get(process)
        if pid is None or any(fault.pid == pid for fault in self.open):
            return False
        try:
            if way == SPIN:
                spin.spin(pid, every_thread=process == SERVER)
            else:
                os.kill(pid, signal.SIGKILL if way == KILL else signal.SIGSTOP)
        except OSError:  # it ended just now
            return False
        self.open.append(Fault(process, way, pid, time.monotonic()))
        return True

    def look(self) -> None:
        """Which of the hurt are whole."""
        if not self.open:
            return
        ready, now = self.server.ready(), time.monotonic()
        running = self.server.processes()
        for fault in list(self.open):
            back = running.get(fault.process, fault.pid) != fault.pid and ready and self.server.ready(fault.process)
            if back or now - fault.at > LOST_SECONDS:
                fault.seconds = now - fault.at if back else None
                self.open.remove(fault)
                self.done.append(fault)
