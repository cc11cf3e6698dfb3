"""Kills a process that runs but does not answer on its port. Its parent starts it again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from covey.supervision import processes
from covey.supervision.starved import Starved
from covey.supervision.watch import Watch
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.errors import CoveyClientError

LOOK_SECONDS = 0.5
STARTING_SECONDS = 60.0  # a process that has not answered yet may be silent this long
log = logging.getLogger("covey.silence")


def answers(address: str, seconds: float) -> bool:
    """Return whether anything comes back on an HTTP port; a refusal is an answer as well."""
    try:
        ask(Address.parse(address, port=0), "GET", "/v2/health/live", headers={}, seconds=seconds)
    except CoveyClientError:
        return False
    return True


def watch(name: str, pid: Callable[[], int], address: str, bound: float) -> Watch:
    """Kill the process whenever its HTTP port has been silent for `bound` seconds, until the watch is stopped."""
    silence = Silence(name, pid, partial(answers, address), bound)
    return Watch(f"whether {name} answers", silence.look, LOOK_SECONDS)


class Silence:
    """Owns the time for which one process has been silent."""

    def __init__(
        self,
        name: str,
        pid: Callable[[], int],
        asks: Callable[[float], bool],
        bound: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pid` returns the process's current number, 0 if it does not run. `asks` returns whether it answers within
        the given seconds. `bound` is how many seconds it may be silent."""
        self._name, self._pid, self._asks, self._bound, self._now = name, pid, asks, bound, now
        self._known = 0
        self._answered = False
        # Sum of looks, not of clock time: while this process did not run, it could hear no answer. Time in which the
        # other was starved of a processor counts less.
        self._silent = 0.0
        self._starved = Starved()

    def look(self) -> None:
        """Ask once, LOOK_SECONDS after the last look, and kill a process that has been silent for too long. Blocks at
        most for as long as the silence has lasted: a late answer is an answer."""
        pid = self._pid()
        if pid != self._known:
            self._known, self._answered, self._silent, self._starved = pid, False, 0.0, Starved()
        if not pid:
            return
        bound = self._bound if self._answered else STARTING_SECONDS
        patience, began = max(LOOK_SECONDS, min(self._silent, bound - self._silent)), self._now()
        if self._asks(patience):
            self._answered, self._silent, self._starved = True, 0.0, Starved()
            return
        waited = LOOK_SECONDS + min(self._now() - began, patience)
        self._silent += self._starved.counted([pid], waited)
        if self._silent >= bound and self._pid() == pid:
            log.warning("%s has not answered for %.1f s; killing it", self._name, self._silent)
            processes.end([pid])
            self._silent = 0.0
