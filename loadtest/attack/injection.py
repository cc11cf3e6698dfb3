"""Injects faults into processes and places, and measures the time until everything has recovered."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loadtest.attack import rooms, spin
from loadtest.attack.launched import FRONT, SERVER, Launched

KILL, PAUSE, SPIN, FILL = "kill", "pause", "spin", "fill"
HOLD_SECONDS = 5.0  # a place stays full for this long
LOST_SECONDS = 120.0  # a part that is not back by then counts as lost
# The launcher gives up a server that has died ten times within ten minutes, and rests longer before each start, also of
# the front. Full shared memory can also end the server.
DEATHS, WINDOW_SECONDS = 4, 600.0
DEADLY = ((SERVER, rooms.MEMORY), (FRONT,))


@dataclass
class Fault:
    """Describes one fault of a process or place."""

    what: str
    way: str
    pid: int  # 0 where it is no process
    at: float
    seconds: float | None = None  # until another process served in its place and the front said ready
    mend: Callable[[], object] | None = None  # None: over; the server must recover by itself

    @property
    def kind(self) -> str:
        return f"{self.way} {self.what}"


def kinds(server: Launched) -> list[tuple[str, str]]:
    """Return every target with every kind of fault."""
    names = sorted(server.processes())
    found = [(name, way) for way in (KILL, PAUSE, SPIN) for name in names if way != SPIN or spin.possible()]
    return [*found, *((place, FILL) for place in server.rooms)]


def wanted(only: str, server: Launched) -> list[tuple[str, str]]:
    """Return the kinds that contain one of the words, which commas part; all if there is no word."""
    words = [word for word in only.split(",") if word]
    return [(what, way) for what, way in kinds(server) if not words or any(word in f"{way} {what}" for word in words)]


def turns(wanted: list[tuple[str, str]], drawn: random.Random) -> Iterator[tuple[str, str]]:
    """Yield the kinds in random order, each as often as any other."""
    while True:
        yield from drawn.sample(wanted, len(wanted))


def harm(what: str, way: str, pid: int) -> bool:
    """Kill, pause or spin a process; return whether it was there."""
    try:
        if way == SPIN:
            spin.spin(pid, every_thread=what == SERVER)
        else:
            os.kill(pid, signal.SIGKILL if way == KILL else signal.SIGSTOP)
    except OSError:  # it ended just now
        return False
    return True


@dataclass
class Injection:
    """Injects faults into the parts of a server and watches them recover."""

    server: Launched
    open: list[Fault] = field(default_factory=list)
    done: list[Fault] = field(default_factory=list)

    def hurt(self, what: str, way: str) -> bool:
        """Inject a fault into a part if it is there, healthy, and may die now; return whether this was done."""
        deadly = next((each for each in DEADLY if what in each), ())
        recent = (fault for fault in self.done + self.open if time.monotonic() - fault.at < WINDOW_SECONDS)
        if deadly and sum(fault.what in deadly for fault in recent) >= DEATHS:
            return False
        fault = self._place(what) if way == FILL else self._process(what, way)
        if fault is not None:
            self.open.append(fault)
        return fault is not None

    def look(self) -> None:
        """End the faults that have lasted long enough, and note which parts have recovered or are lost."""
        if not self.open:
            return
        ready, now = self.server.ready(), time.monotonic()
        running = self.server.processes()
        for fault in list(self.open):
            if fault.mend is not None:
                if now - fault.at >= HOLD_SECONDS:
                    fault.mend()
                    fault.mend, fault.at = None, now
                continue
            back = ready and self._whole(fault, running)
            if back or now - fault.at > LOST_SECONDS:
                fault.seconds = now - fault.at if back else None
                self.open.remove(fault)
                self.done.append(fault)

    def mend(self) -> None:
        """End all faults that can be ended, as at the end of a run."""
        for fault in self.open:
            if fault.mend is not None:
                fault.mend()

    def _place(self, what: str) -> Fault | None:
        if any(fault.what == what for fault in self.open):
            return None
        room = self.server.rooms[what]
        room.fill()
        return Fault(what, FILL, 0, time.monotonic(), mend=room.empty)

    def _process(self, what: str, way: str) -> Fault | None:
        pid = self.server.processes().get(what)
        if pid is None or any(fault.pid == pid for fault in self.open) or not harm(what, way, pid):
            return None
        return Fault(what, way, pid, time.monotonic())

    def _whole(self, fault: Fault, running: dict[str, int]) -> bool:
        if fault.pid == 0:
            return all(self.server.ready(name) for name in running)
        return running.get(fault.what, fault.pid) != fault.pid and self.server.ready(fault.what)
