"""The engine's inbox: other threads ask it to take or end requests, to look at its target, to drain and to stop."""

from __future__ import annotations

import threading
from collections import Counter, deque

from covey.contracts.errors import Overloaded
from covey.contracts.types import Finish, Request
from covey.requests.scheduler import Scheduler


class Inbox:
    """Owns what was asked since the last round, and the condition that wakes the engine. Any thread may call the
    methods up to `suspect`; the engine's thread calls the others."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Request | tuple[int, Finish]] = deque()
        self._pending: Counter[str] = Counter()  # submissions by tenant that the scheduler has not seen yet
        self._wake = threading.Condition()
        self._draining = False
        self._stopped = False
        self._suspected = False  # whether the target may have ended

    def submit(self, request: Request) -> None:
        """Queue a request; raises Overloaded if the server is draining or the queue is full."""
        with self._wake:
            if self._draining:
                raise Overloaded("the server is draining; no new requests")
            pending = self._pending
            problem = self._scheduler.full(request.tenant, pending.total(), pending[request.tenant])
            if problem:
                raise Overloaded(f"{problem}; {self._scheduler.retry_advice()}")
            pending[request.tenant] += 1
            self._items.append(request)
            self._wake.notify()

    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None:
        """End a request before the next round. Its blocks are free after that round. Ignores unknown keys."""
        with self._wake:
            self._items.append((key, finish))
            self._wake.notify()

    def drain(self) -> None:
        """Refuse new requests. Accepted ones continue."""
        with self._wake:
            self._draining = True

    def stop(self) -> None:
        """Make the engine's `run` return after the current round."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def suspect(self) -> None:
        """Note that the target may have ended. The engine checks while it is idle, so no request waits for the
        reload."""
        with self._wake:
            self._suspected = True
            self._wake.notify()

    # ---- the engine's own thread ------------------------------------------------------------------------------------

    def wait(self, seconds: float | None) -> bool:
        """Wait for work, at most `seconds`. Return False after `stop`."""
        with self._wake:
            while not (self._stopped or self._suspected or self._items) and self._scheduler.idle:
                if not self._wake.wait(seconds):
                    break
            return not self._stopped

    def take(self) -> deque[Request | tuple[int, Finish]]:
        """Remove and return the new requests and the ends of others, in order. The caller gives the requests to the
        scheduler."""
        with self._wake:
            items, self._items = self._items, deque()
            self._pending.clear()
        return items

    def take_suspicion(self) -> bool:
        """Return whether the target may have ended since the last call."""
        with self._wake:
            suspected, self._suspected = self._suspected, False
        return suspected
