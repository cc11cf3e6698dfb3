"""Brings models whose process died back to life, each in a thread of its own.

The orchestrator has one for target and drafters; the launcher has one for all other models (`covey.server.revival`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from covey.errors import CoveyError, PortError, StubDead
from covey.ports import Controller

log = logging.getLogger("covey.supervisor")

FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds between a reload that failed and the next
NEW_SECONDS = 2.0  # a process that is younger than this is not the one that has died, but its successor
LOADING_SECONDS = 0.1  # between looks whether somebody else has loaded it


class Supervisor:
    """Reloads each model until it is back; a model that is being seen to is not reloaded twice.

    A model whose reload failed is tried again: it is unloaded by then, so that calls to it fail as to one that nobody
    wants loaded, and nothing else would bring it back."""

    def __init__(
        self,
        control: Controller,
        came_back: Callable[[str], None],
        processes: Callable[[str], Mapping[int, float]] = lambda _model: {},
        end: Callable[[Iterable[int]], None] = lambda _pids: None,
    ) -> None:
        """`came_back` is called with a model that is back; `processes` says which of a model live, and for how many
        seconds each has, and `end` ends some. All on threads of this one's, or of who calls `report` or `reload`."""
        self._control, self._processes, self._end = control, processes, end
        self._came_back = came_back
        self._seen_to: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def report(self, model: str, error: CoveyError) -> None:
        """A call to the model failed. Only a dead process is acted on. Any thread; returns at once."""
        if not isinstance(error, StubDead):
            return
        with self._lock:
            if model in self._seen_to or self._stopped.is_set():
                return
            dead = {pid for pid, age in self._processes(model).items() if age > NEW_SECONDS}
            thread = threading.Thread(target=self._bring_back, args=(model, dead), name=f"reload {model}", daemon=True)
            self._seen_to[model] = thread
            thread.start()

    def sees_to(self, model: str) -> bool:
        """Whether it is being reloaded, or is to be. Any thread."""
        with self._lock:
            return model in self._seen_to

    def reload(self, model: str) -> None:
        """Triton never restarts a dead stub, and loading alone does nothing: unload, then load. Blocks. One that was
        only paused, or found no processor for a second, is dead to Triton, which would let it live beside the next."""
        log.warning("reloading %s", model)
        self._end(self._processes(model))
        try:
            self._control.unload(model)
        except CoveyError as error:  # it may be unloaded already
            log.warning("%s could not be unloaded: %s", model, error)
        self._control.load(model)

    def stop(self, seconds: float | None = None) -> None:
        """Reload nothing more, but for what is under way; wait for that, at most `seconds` long."""
        with self._lock:
            self._stopped.set()
            threads = list(self._seen_to.values())
        until = None if seconds is None else time.monotonic() + seconds
        for thread in threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def _bring_back(self, model: str, dead: set[int]) -> None:
        rest = FIRST_REST
        while not self._brought_back(model, dead):
            log.warning("%s is tried again in %g s", model, rest)
            if self._stopped.wait(rest):
                break
            rest = min(2 * rest, LONGEST_REST)
        with self._lock:
            del self._seen_to[model]

    def _brought_back(self, model: str, dead: set[int]) -> bool:
        try:
            if not self._others_did(model, dead):
                self.reload(model)
            log.info("%s is back", model)
            self._came_back(model)
        except CoveyError as error:
            if isinstance(error, StubDead):
                dead.update(self._processes(model))
            log.error("%s could not be reloaded: %s", model, error)
            return False
        except Exception:  # nothing may end the thread that all models depend on
            log.exception("%s could not be reloaded", model)
            return False
        return True

    def _others_did(self, model: str, dead: set[int]) -> bool:
        """Whether somebody else has reloaded it, as another target's orchestrator that it drafts for, too. Waits for
        who does."""
        while (state := self._control.states().get(model)) == "LOADING":
            if self._stopped.wait(LOADING_SECONDS):
                raise PortError("it is being loaded, and nobody waits for it any more")
        return state == "READY" and not self._processes(model).keys() <= dead
