"""Does slow work before a request is submitted. It does one job at a time, in a separate thread, so that other requests
need not wait. One queue tokenizes long prompts, another compiles new grammars.

Tenants take turns: the one with the fewest bytes of prompts, or grammars, so far goes first. A job is a call; this
module knows neither prompts nor grammars.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from covey.contracts.errors import Overloaded

LONG = 4096  # bytes from which a prompt is long: a millisecond's work
MOST_BYTES = 16 << 20  # that may wait, of all tenants; of one tenant, half of that
MOST_GRAMMARS = 64  # likewise
ENDLESS_SECONDS = 10.0  # after which a job is no longer counted: a regular expression may take for ever
NICE = 10  # rounds have priority on few cores
Job = Callable[[Exception | None], None]  # called with None to do it, or with the reason if it is dropped; never raises
log = logging.getLogger("covey.slow_jobs")


class SlowJobs:
    """Owns a queue of jobs by tenant, and the thread that does them."""

    def __init__(self, most: int = MOST_BYTES, what: str = "bytes of long prompts", nice: int = NICE) -> None:
        """`nice` is for the thread and the processes that its jobs start."""
        self._most, self._what, self._nice = most, what, nice
        self._queues: dict[str, deque[tuple[int, Job]]] = {}
        self._bytes: dict[str, int] = {}  # that wait, by tenant
        self._had: dict[str, int] = {}  # bytes done so far, of tenants that wait and of the last one served
        self._wake = threading.Condition()
        self._stopped = False
        self._began: float | None = None  # when the current job began
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def put(self, tenant: str, size: int, job: Job) -> None:
        """Queue a job of `size` bytes, or of one grammar. Raises Overloaded."""
        with self._wake:
            if self._stopped:
                raise Overloaded("the server is stopping")
            own, waiting = self._bytes.get(tenant, 0), sum(self._bytes.values())
            if (own and own + size > self._most // 2) or (waiting and waiting + size > self._most):
                raise Overloaded(f"queue full: {waiting} {self._what} are waiting; try again in 1 s")
            if tenant not in self._queues:
                self._had[tenant] = max(
                    self._had.get(tenant, 0), min((self._had[each] for each in self._queues), default=0)
                )
                self._queues[tenant] = deque()
            self._queues[tenant].append((size, job))
            self._bytes[tenant] = own + size
            self._wake.notify()

    def __len__(self) -> int:
        """Return how many jobs wait or run, without one that runs for ENDLESS_SECONDS."""
        with self._wake:
            doing = self._began is not None and time.monotonic() - self._began < ENDLESS_SECONDS
            return sum(map(len, self._queues.values())) + doing

    def refuse(self) -> None:
        """Take no more jobs, and tell waiting ones that they are dropped."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def stop(self) -> None:
        self.refuse()
        self._thread.join()

    def _run(self) -> None:
        os.nice(self._nice)  # only this thread; `setpriority` would need a privilege if the server is nicer
        while True:
            with self._wake:
                while not self._queues and not self._stopped:
                    self._wake.wait()
                if not self._queues:
                    return
                job = self._take()
                problem = Overloaded("the server is stopping") if self._stopped else None
                self._began = time.monotonic()
            try:
                job(problem)
            except Exception:  # all other jobs depend on this thread, so it must go on
                log.exception("a job of the queue of %s failed", self._what)
            self._began = None

    def _take(self) -> Job:
        tenant = min(self._queues, key=self._had.__getitem__)
        size, job = self._queues[tenant].popleft()
        self._had[tenant] += size
        self._bytes[tenant] -= size
        if not self._queues[tenant]:
            del self._queues[tenant], self._bytes[tenant]
            self._had = {each: had for each, had in self._had.items() if each in self._queues or each == tenant}
        return job
