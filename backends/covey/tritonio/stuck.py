"""Finds models that run and do not answer: calls that take far longer than those like them did. Their processes are
ended, and what is dead is brought back by who brings back the dead (`covey.tritonio.supervisor`)."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from covey.starved import Starved

LOOK_SECONDS = 0.25
PASSES, LEAST_SECONDS = 5.0, 2.0  # a call may take so many times what is expected of it, and so long in any case
DOUBTFUL_SECONDS = 1.0  # after which a call is asked why it takes so long
# Where nothing is expected yet, as of a pass that compiles a kernel. Without a drafter requests are served, so that to
# have less patience with one costs less. After each call that was ended there is twice as much.
UNKNOWN_SECONDS, DRAFTERS_SECONDS = 60.0, 15.0
QUESTION_SECONDS = 15.0  # for what takes a model no time; it may have to end other work first
QUESTION = -1  # the size of one
KNOWN_CALLS, MEMORY = 3, 0.9  # of a size, before anything is expected; what a mean keeps of itself
log = logging.getLogger("covey.stuck")


Kind = tuple[str, int]  # model, and size


@dataclass
class _Open:
    kind: Kind
    bound: float
    # Seconds of looks, for while this process did not run the other may not have either, and without those in which the
    # other wanted a processor and had none.
    seconds: float = 0.0
    pids: tuple[int, ...] = ()
    starved: Starved = field(default_factory=Starved)

    def look(self, pids: Callable[[str], Iterable[int]]) -> None:
        counted = LOOK_SECONDS
        if self.seconds >= DOUBTFUL_SECONDS:
            self.pids = self.pids or tuple(pids(self.kind[0]))
            counted = self.starved.counted(self.pids, LOOK_SECONDS)
        self.seconds += counted


class Stuck:
    """Owns the calls under way, and by model and size how long calls take. Sizes are one where the numbers of tokens
    have as many bits."""

    def __init__(
        self,
        end: Callable[[str], None],
        pids: Callable[[str], Iterable[int]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`end` ends a model's processes, which `pids` knows."""
        self._end, self._pids, self._now = end, pids, now
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._open: dict[int, _Open] = {}
        self._means: dict[Kind, tuple[int, float]] = {}  # calls, and the mean of their seconds
        self._patience: dict[Kind, float] = {}  # times; twice as much after each call that was ended

    @contextmanager
    def call(self, model: str, tokens: int, unknown: float = UNKNOWN_SECONDS) -> Iterator[None]:
        """While a model computes so many tokens, which may take `unknown` seconds where nothing is expected yet. Any
        thread."""
        kind, began = (model, tokens.bit_length()), self._now()
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
        with self._watched(kind, unknown if calls < KNOWN_CALLS else max(LEAST_SECONDS, PASSES * mean)):
            yield
        taken = self._now() - began
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
            keep = min(MEMORY, calls / (calls + 1))
            self._means[kind] = calls + 1, keep * mean + (1 - keep) * taken

    def question(self, model: str) -> AbstractContextManager[None]:
        """While a model says what it is, or does something else that takes it no time. Any thread."""
        return self._watched((model, QUESTION), QUESTION_SECONDS)

    @contextmanager
    def _watched(self, kind: Kind, bound: float) -> Iterator[None]:
        key = next(self._keys)
        with self._lock:
            self._open[key] = _Open(kind, bound * self._patience.get(kind, 1.0))
        try:
            yield
        finally:
            with self._lock:
                del self._open[key]
        with self._lock:
            self._patience.pop(kind, None)

    def look(self) -> None:
        """Called every LOOK_SECONDS. What is known of a model that was ended is forgotten: it begins cold."""
        with self._lock:
            calls = list(self._open.values())
        for call in calls:  # without the lock, for which calls would wait
            call.look(self._pids)
        with self._lock:
            late = {call.kind[0]: call for call in self._open.values() if call.seconds > call.bound}
            for model, call in late.items():
                self._means = {kind: mean for kind, mean in self._means.items() if kind[0] != model}
                self._patience[call.kind] = 2 * self._patience.get(call.kind, 1.0)
                for other in self._open.values():
                    if other.kind[0] == model:
                        other.bound = other.seconds + UNKNOWN_SECONDS
        for model, call in late.items():
            log.warning("%s has not answered for %.1f s and its process is ended", model, call.seconds)
            self._end(model)
