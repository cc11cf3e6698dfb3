"""Brings models whose process died back to life, from a thread of its own.

The orchestrator has one for target and drafters, which acts through the controller; the launcher has one for all other
models (`covey.server.revival`), the controller among them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from covey.errors import CoveyError, StubDead

log = logging.getLogger("covey.supervisor")

FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds between a reload that failed and the next


class Supervisor:
    """Reloads models one at a time, each until it is back; a model that is being seen to is not queued twice.

    A model whose reload failed stays queued: it is unloaded by then, so that calls to it fail as to one that nobody
    wants loaded, and nothing else would bring it back."""

    def __init__(self, control: Callable[[str, str], None], came_back: Callable[[str], None]) -> None:
        """`control` is called with `load` or `unload` and a model, and raises CoveyError when that fails; `came_back`
        with a model that was reloaded. Both on this one's thread."""
        self._control = control
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

    def sees_to(self, model: str) -> bool:
        """Whether it is being reloaded, or is to be. Any thread."""
        with self._lock:
            return model in self._seen_to

    def reload(self, model: str) -> None:
        """Triton never restarts a dead stub, and loading alone does nothing: unload, then load. Blocks."""
        log.warning("reloading %s", model)
        try:
            self._control("unload", model)
        except CoveyError as error:  # it may be unloaded already
            log.warning("%s could not be unloaded: %s", model, error)
        self._control("load", model)

    def stop(self, seconds: float | None = None) -> None:
        """Reload nothing more, but for what is under way; wait for that, at most `seconds` long."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        due: dict[str, float] = {}  # when each model is to be reloaded
        rests: dict[str, float] = {}  # how long it waits after the next failure
        while True:
            try:
                left = None if not due else max(0.0, min(due.values()) - time.monotonic())
                model = self._queue.get(timeout=left)
                if model is None:
                    return
                due[model] = time.monotonic()
            except queue.Empty:
                model = min(due, key=due.__getitem__)
            if self._brought_back(model):
                del due[model]
                rests.pop(model, None)
                with self._lock:
                    self._seen_to.discard(model)
                continue
            rest = rests.get(model, FIRST_REST)
            log.warning("%s is tried again in %g s", model, rest)
            due[model] = time.monotonic() + rest
            rests[model] = min(2 * rest, LONGEST_REST)

    def _brought_back(self, model: str) -> bool:
        try:
            self.reload(model)
            log.info("%s is back", model)
            self._came_back(model)
        except CoveyError as error:
            log.error("%s could not be reloaded: %s", model, error)
            return False
        except Exception:  # nothing may end the thread that all models depend on
            log.exception("%s could not be reloaded", model)
            return False
        return True
