"""Looks at something periodically, from a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from covey.contracts.errors import CoveyError

log = logging.getLogger("covey.care.watch")


class Watch:
    """Looks every so many seconds until it is stopped. Looks count time, not the clock: while this process did not run,
    those that it looks at may not have run either."""

    def __init__(self, name: str, look: Callable[[], object], seconds: float) -> None:
        """`name` is what it sees, for readers of the log."""
        self._name, self._look, self._seconds = name, look, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; waits for a look that is under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        blind = False
        while not self._stopped.wait(self._seconds):
            try:
                self._look()
                blind = False
            except CoveyError as error:
                if not blind:  # once: a server that has ended is asked until somebody notices
                    log.warning("cannot see %s, looks again every %g s: %s", self._name, self._seconds, error)
                blind = True
            except Exception:  # nothing may end the thread that finds out what hangs
                log.exception("could not see %s, looks again in %g s", self._name, self._seconds)
