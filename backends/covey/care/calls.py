"""Finds models that run and do not answer: calls that take far longer than similar ones did. Their processes are ended;
`covey.care.supervisor` brings them back."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from covey.care.starved import Starved
from covey.process.log_about import Names, about, current

LOOK_SECONDS = 0.25
PASSES, LEAST_SECONDS = 5.0, 2.0  # a call may take so many times what is expected of it, and so long in any case
DOUBTFUL_SECONDS = 1.0  # after which a call is asked why it takes so long
# Where nothing is expected yet, as of a pass that compiles a kernel. Without a drafter requests are served, so that to
# have less patience with one costs less. After each call that was ended there is twice as much.
UNKNOWN_SECONDS, DRAFTERS_SECONDS = 60.0, 15.0
GRAMMAR_SECONDS = 20.0  # may a call take in any case that brings a grammar: its tokenizer may be yet to be read
QUESTION_SECONDS = 15.0  # for what takes a model no time; it may have to end other work first
QUESTION = -1  # the size of one
KNOWN_CALLS, MEMORY = 3, 0.9  # of a size, before anything is expected; what a mean keeps of itself
log = logging.getLogger("covey.calls")


Kind = tuple[str, int]  # model, and size
Processes = Callable[[str], Mapping[int, float]]  # of a model, and for how many seconds each has been there


@dataclass
class _Open:
    kind: Kind
    bound: float
    began: float
    # Seconds of looks, for while this process did not run the other may not have either, and without those in which the
    # other wanted a processor and had none.
    seconds: float = 0.0
    pids: set[int] | None = None  # whom it was asked of; found when it is doubtful
    starved: Starved = field(default_factory=Starved)
    names: Names = field(default_factory=current)  # of the requests that it is about

    def look(self, processes: Processes, now: float) -> bool:
        """Return whether an answer may still come: Triton never answers some calls to a process that has ended."""
        counted = LOOK_SECONDS
        if self.seconds >= DOUBTFUL_SECONDS:
            running = processes(self.kind[0])
            if self.pids is None:
                self.pids = {pid for pid, age in running.items() if age > now - self.began}
            self.pids &= running.keys()
            if not self.pids:
                return False
            counted = self.starved.counted(self.pids, LOOK_SECONDS)
        self.seconds += counted
        return True


class Calls:
    """Owns the calls under way, and how long calls take by model and size, which is the bits of their token counts."""

    def __init__(
        self,
        end: Callable[[Iterable[int]], None],
        processes: Processes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._end, self._processes, self._now = end, processes, now
        self._lock = threading.Lock()
        self._keys = itertools.count()
        self._open: dict[int, _Open] = {}
        self._means: dict[Kind, tuple[int, float]] = {}  # calls, and the mean of their seconds
        self._patience: dict[Kind, float] = {}  # times; twice as much after each call that was ended

    @contextmanager
    def call(
        self, model: str, tokens: int, unknown: float = UNKNOWN_SECONDS, least: float = LEAST_SECONDS
    ) -> Iterator[None]:
        """Watch a call that computes so many tokens. It may take `unknown` seconds while nothing is expected yet, and
        `least` in any case. Any thread."""
        kind, began = (model, tokens.bit_length()), self._now()
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
        with self._watched(kind, unknown if calls < KNOWN_CALLS else max(least, PASSES * mean)):
            yield
        taken = self._now() - began
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
            keep = min(MEMORY, calls / (calls + 1))
            self._means[kind] = calls + 1, keep * mean + (1 - keep) * taken

    def question(self, model: str) -> AbstractContextManager[None]:
        """Watch a call that takes a model no time, as one that asks what it is. Any thread."""
        return self._watched((model, QUESTION), QUESTION_SECONDS)

    @contextmanager
    def _watched(self, kind: Kind, bound: float) -> Iterator[None]:
        key = next(self._keys)
        with self._lock:
            self._open[key] = _Open(kind, bound * self._patience.get(kind, 1.0), self._now())
        try:
            yield
        finally:
            with self._lock:
                self._open.pop(key, None)
        with self._lock:
            self._patience.pop(kind, None)

    def look(self) -> None:
        """Look at the open calls, every LOOK_SECONDS. Forgets what was learnt of a model that is ended."""
        with self._lock:
            calls = dict(self._open)
        now = self._now()
        lost = {key for key, call in calls.items() if not call.look(self._processes, now)}  # calls wait for the lock
        with self._lock:
            self._open = {key: call for key, call in self._open.items() if key not in lost}
            hang = {call.kind[0]: call for call in self._open.values() if call.seconds > call.bound}
            for model, call in hang.items():
                self._means = {kind: mean for kind, mean in self._means.items() if kind[0] != model}
                self._patience[call.kind] = 2 * self._patience.get(call.kind, 1.0)
            for call in self._open.values():
                if call.kind[0] in hang:
                    call.bound = math.inf
        for model, call in hang.items():
            with about(call.names):
                log.warning("%s has not answered for %.1f s and its process is ended", model, call.seconds)
            self._end(call.pids or ())
