"""Brings models whose process died back to life, through the controller, from a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from covey.errors import CoveyError, PortError, StubDead
from covey.tritonio import bls

log = logging.getLogger("covey.supervisor")


class Supervisor:
    """Reloads models one at a time; a model that is being seen to is not queued twice."""

    def __init__(self, controller: str, came_back: Callable[[str], None]) -> None:
        """`came_back` is called with a model that was reloaded, on this one's thread."""
        self._controller = controller
        self._came_back = came_back
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._seen_to: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def report(self, model: str, error: CoveyError) -> None:
        """A call to the model failed. Only a dead process is acted on. Any thread; returns at once."""
        if not isinstance(error, StubDead):
            return
        with self._lock:
            if model in self._seen_to:
                return
            self._seen_to.add(model)
        self._queue.put(model)

    def reload(self, model: str) -> None:
        """Triton never restarts a dead stub, and loading alone does nothing: unload, then load. Blocks."""
        log.warning("reloading %s", model)
        bls.control(self._controller, "unload", model)
        bls.control(self._controller, "load", model)

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (model := self._queue.get()) is not None:
            try:
                self.reload(model)
                log.info("%s is back", model)
                self._came_back(model)
            except PortError as error:
                log.error("%s could not be reloaded: %s", model, error)
            with self._lock:
                self._seen_to.discard(model)
