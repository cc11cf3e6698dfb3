"""Finds models that run and do not answer: calls that take far longer than those like them did. Their processes are
ended, and what is dead is brought back by who brings back the dead (`covey.tritonio.supervisor`)."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOOK_SECONDS = 0.25
PASSES, LEAST_SECONDS = 5.0, 2.0  # a call may take so many times what is expected of it, and so long in any case
UNKNOWN_SECONDS = 60.0  # where nothing is expected yet, as of a pass that compiles a kernel
KNOWN_CALLS, MEMORY = 3, 0.9  # of a size, before anything is expected; what a mean keeps of itself
log = logging.getLogger("covey.stuck")


@dataclass
class _Open:
    model: str
    bound: float
    seconds: float = 0.0  # of looks: while this process did not run, the other may not have either


class Stuck:
    """Owns the calls under way, and by model and size how long calls take. Sizes are one where the numbers of tokens
    have as many bits."""

    def __init__(self, end: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        """`end` ends a model's process."""
        self._end, self._now = end, now
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._open: dict[int, _Open] = {}
        self._means: dict[tuple[str, int], tuple[int, float]] = {}  # calls, and the mean of their seconds

    @contextmanager
    def call(self, model: str, tokens: int) -> Iterator[None]:
        """While a model computes so many tokens. Any thread."""
        kind, key, began = (model, tokens.bit_length()), next(self._keys), self._now()
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
            bound = UNKNOWN_SECONDS if calls < KNOWN_CALLS else max(LEAST_SECONDS, PASSES * mean)
            self._open[key] = _Open(model, bound)
        try:
            yield
        except BaseException:
            with self._lock:
                del self._open[key]
            raise
        taken = self._now() - began
        with self._lock:
            del self._open[key]
            calls, mean = self._means.get(kind, (0, 0.0))
            keep = min(MEMORY, calls / (calls + 1))
            self._means[kind] = calls + 1, keep * mean + (1 - keep) * taken

    def look(self) -> None:
        """Called every LOOK_SECONDS. What is known of a model that was ended is forgotten: it begins cold."""
        with self._lock:
            for call in self._open.values():
                call.seconds += LOOK_SECONDS
            late = {call.model: call for call in self._open.values() if call.seconds > call.bound}
            for model in late:
                self._means = {kind: mean for kind, mean in self._means.items() if kind[0] != model}
                for other in self._open.values():
                    if other.model == model:
                        other.bound = other.seconds + UNKNOWN_SECONDS
        for model, call in late.items():
            log.warning("%s has not answered for %.1f s and its process is ended", model, call.seconds)
            self._end(model)


class StuckWatch:
    """Looks from a thread of its own until it is stopped."""

    def __init__(self, stuck: Stuck) -> None:
        self._stuck = stuck
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stuck", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self._stuck.look()
            except Exception:  # nothing may end the thread that all calls depend on
                log.exception("stuck models could not be looked for")
