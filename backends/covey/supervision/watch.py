"""Looks at something periodically, in its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from covey.contracts.errors import CoveyError

log = logging.getLogger("covey.supervision.watch")


class Watch:
    """Calls `look` every `seconds` until it is stopped. Looks measure time, not the clock: while this process did not
    run, the processes that it watches may not have run either."""

    def __init__(self, name: str, look: Callable[[], object], seconds: float) -> None:
        """`name` tells readers of the log what is watched."""
        self._name, self._look, self._seconds = name, look, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; waits for the current look to end."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        blind = False
        while not self._stopped.wait(self._seconds):
            try:
                self._look()
                blind = False
            except CoveyError as error:
                if not blind:  # log once: a server that has ended is looked at until its end is seen
                    log.warning("cannot see %s, trying again every %g s: %s", self._name, self._seconds, error)
                blind = True
            except Exception:  # this thread finds processes that hang, so it must go on
                log.exception("cannot see %s, trying again in %g s", self._name, self._seconds)
