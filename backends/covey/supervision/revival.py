"""Reloads models until they are back, each in its own thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from covey.contracts.errors import CoveyError
from covey.supervision.control import LOADING, READY, Control, ControlError
from covey_client.backoff import Backoff

log = logging.getLogger("covey.revival")

FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds of backoff after a failed reload


class Revival:
    """Owns the reloads that are under way; a model is never reloaded twice at the same time."""

    def __init__(self, control: Control, lacks: Callable[[str], bool]) -> None:
        """`lacks` tells whether a model that Triton calls ready lacks its process; another caller may have loaded it
        between two tries. `control` must wait for loads to finish."""
        self._control, self._lacks = control, lacks
        self._under_way: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def begin(self, model: str) -> None:
        """Reload the model until it is back. Any thread; returns at once."""
        with self._lock:
            if model in self._under_way or self._stopped.is_set():
                return
            thread = threading.Thread(target=self._run, args=(model,), name=f"reload {model}", daemon=True)
            self._under_way[model] = thread
            thread.start()

    def sees_to(self, model: str) -> bool:
        """Return whether a reload of the model is under way. Any thread may call it."""
        with self._lock:
            return model in self._under_way

    def stop(self, seconds: float) -> None:
        """Begin no more reloads. Waits at most `seconds` for those under way: Triton may crash when it unloads a model
        that is loading."""
        self._stopped.set()
        until = time.monotonic() + seconds
        with self._lock:
            threads = list(self._under_way.values())
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, model: str) -> None:
        backoff = Backoff(FIRST_REST, LONGEST_REST)
        while not self._reloaded(model):
            rest = backoff.failed()
            log.warning("retrying to reload %s in %g s", model, rest)
            if self._stopped.wait(rest):
                break
        with self._lock:
            del self._under_way[model]

    def _reloaded(self, model: str) -> bool:
        """Unload and load the model, as Triton never restarts a dead process. Return whether it is back."""
        log.warning("reloading %s", model)
        try:
            state = self._control.states().get(model)
            if state == LOADING:
                raise ControlError("another caller is loading it")
            if state != READY or self._lacks(model):
                if state == READY:
                    self._control.unload(model)
                self._control.load(model)
        except CoveyError as error:
            log.error("cannot reload %s: %s", model, error)
            return False
        except Exception:  # nothing may end the thread that a model depends on
            log.exception("cannot reload %s", model)
            return False
        log.info("%s is back", model)
        return True
