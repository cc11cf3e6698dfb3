"""The states of a public model, from its load to its end.

    LOADING --a moment later--> STARTING --> SERVING --> FAILED
                                   +-----------------------^

A BLS call made before `initialize` returns never comes back. So the start begins a moment later, in the thread that
then runs the engine; callers wait. A model whose target or engine has failed ends itself and is loaded again; the next
start may find its target.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from covey.contracts.errors import CoveyError, Overloaded, PortError
from covey.public_model.service import Service

START_SECONDS = 300.0
SETTLE_SECONDS = 1.0  # after `initialize`, before the first BLS call
LEAVE_SECONDS = 0.5  # lets the last answers leave
STOP_SECONDS = 5.0  # for the current round; a BLS call that outlives the model's end never comes back
log = logging.getLogger("covey.orchestrator")


class Life:
    """Owns a public model's service, once it exists, and its final failure. Any thread may ask."""

    def __init__(self) -> None:
        self.settled = threading.Event()  # other models can be asked
        self.asked = threading.Event()  # a request or the end has come: stop measuring
        self.stopping = threading.Event()
        self.service: Service | None = None
        self.failure: CoveyError | None = None
        self._known = threading.Event()  # there is a service or a failure
        self._thread: threading.Thread | None = None

    def begin(self, start: Callable[[], Service], leave: Callable[[], None]) -> None:
        """Start and serve in a thread. `leave` ends this model, which makes the launcher load it again."""
        self._thread = threading.Thread(target=self._run, args=(start, leave), name="engine", daemon=True)
        self._thread.start()

    def wait(self, seconds: float = START_SECONDS) -> Service:
        """Return the service once there is one. Raises the failure, or Overloaded if the start takes longer than
        `seconds`."""
        if not self._known.wait(seconds):
            raise Overloaded("the server is still starting")
        return self.check()

    def check(self) -> Service:
        """Return the service that `wait` has returned before, or raise its failure."""
        if self.failure is not None:
            raise self.failure
        assert self.service is not None, "either a service or a failure exists"
        return self.service

    def serves(self, seconds: float) -> bool | str:
        """Wait at most `seconds`. Return whether the model serves, or why it never will."""
        known = self._known.wait(seconds)
        return known if self.failure is None else str(self.failure)

    def end(self) -> None:
        """Note that the model must end: no start continues."""
        self.stopping.set()
        self.asked.set()

    def join(self) -> None:
        """Stop the service after `end`, and wait for its thread at most STOP_SECONDS."""
        if self.service is not None:
            self.service.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self, start: Callable[[], Service], leave: Callable[[], None]) -> None:
        self.asked.wait(SETTLE_SECONDS)
        self.settled.set()
        try:
            self.service = start()
        except CoveyError as error:
            log.error("cannot start: %s", error)
            self.failure = error
        except Exception:
            log.exception("cannot start")
            self.failure = CoveyError("the engine could not start after an internal error; see the server's log")
        finally:
            self._known.set()
        if self.service is not None:
            self._serve(self.service)
        if isinstance(self.failure, PortError):
            self._leave(leave)

    def _serve(self, service: Service) -> None:
        if self.stopping.is_set():
            service.stop()  # `end` may have come before there was a service
        try:
            service.run()
        except Exception:
            if self.stopping.is_set():
                return  # cut off in mid-round; its requests have their answer
            log.exception("the engine's thread died")
            self.failure = PortError("the engine has stopped after an internal error; see the server's log")
            service.fail(self.failure)

    def _leave(self, leave: Callable[[], None]) -> None:
        """Call `leave` when all open requests are answered, or after STOP_SECONDS."""
        until = time.monotonic() + STOP_SECONDS
        while self.service is not None and self.service.open and time.monotonic() < until:
            time.sleep(0.05)
        self.stopping.wait(LEAVE_SECONDS)
        leave()
