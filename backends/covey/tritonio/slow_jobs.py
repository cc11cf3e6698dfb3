"""Does what takes long before a request can be submitted, one job at a time in a thread of its own, so that other
requests do not wait behind it. One queue tokenizes long prompts, another compiles new grammars.

Tenants take turns by bytes of prompts, or by grammars: whoever has had fewer goes first. A job is a call; this module
knows neither prompts nor grammars.
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
MOST_BYTES = 16 << 20  # that wait, of all tenants; of one of them, half as many
MOST_GRAMMARS = 64  # likewise
ENDLESS_SECONDS = 10.0  # after which nobody waits for a job any more: a regular expression may run for ever
NICE = 10  # the rounds go first where there are few cores
Job = Callable[[Exception | None], None]  # called with why it will not be done, or with None to do it; never raises
log = logging.getLogger("covey.slow_jobs")


class SlowJobs:
    """Owns a queue of jobs by tenant, and the thread that does them."""

    def __init__(self, most: int = MOST_BYTES, what: str = "bytes of long prompts", nice: int = NICE) -> None:
        """A process that a job starts is as nice as this one's thread."""
        self._most, self._what, self._nice = most, what, nice
        self._queues: dict[str, deque[tuple[int, Job]]] = {}
        self._bytes: dict[str, int] = {}  # that wait
        self._had: dict[str, int] = {}  # bytes, of those who wait and of whoever was last
        self._wake = threading.Condition()
        self._stopped = False
        self._began: float | None = None  # when the job that is being done began
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def put(self, tenant: str, size: int, job: Job) -> None:
        """Have a job of so many bytes, or of one grammar, done. Raises Overloaded."""
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
        """Return how many jobs wait or are being done, without one that may never end."""
        with self._wake:
            doing = self._began is not None and time.monotonic() - self._began < ENDLESS_SECONDS
            return sum(map(len, self._queues.values())) + doing

    def refuse(self) -> None:
        """Take no more jobs, and tell those that wait that they will not be done."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def stop(self) -> None:
        self.refuse()
        self._thread.join()

    def _run(self) -> None:
        os.nice(self._nice)  # this thread alone; to name a number would need a right where the server is nicer
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
            except Exception:  # nothing may end the thread that the others wait for
                log.exception("one of the %s could not be taken", self._what)
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
