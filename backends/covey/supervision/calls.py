"""Finds models that run but do not answer: their calls take far longer than similar calls did. Kills their processes;
`covey.supervision.supervisor` brings the models back."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from covey.process.log_about import Names, about, current
from covey.supervision.starved import Starved

LOOK_SECONDS = 0.25
PASSES, LEAST_SECONDS = 5.0, 2.0  # a call's timeout: PASSES times the mean of its kind, but at least LEAST_SECONDS
DOUBTFUL_SECONDS = 1.0  # after which a call's process is examined
# Timeouts until enough calls of a kind were seen; the first may compile a kernel. A missing drafter costs only speed,
# so its timeout is shorter. The timeout doubles after each call that was killed.
UNKNOWN_SECONDS, DRAFTERS_SECONDS = 60.0, 15.0
GRAMMAR_SECONDS = 20.0  # the least timeout of a call with a grammar: the target may have to read its tokenizer first
QUESTION_SECONDS = 15.0  # for a question that takes no time itself: the model may have to finish other work first
QUESTION = -1  # stands for the size of a question
KNOWN_CALLS, OLD = 3, 0.9  # calls of a kind before its mean counts; the weight of the old mean at an update
log = logging.getLogger("covey.calls")


CallKind = tuple[str, int]  # model and size
Processes = Callable[[str], Mapping[int, float]]  # of a model, and the age of each in seconds


@dataclass
class _Open:
    kind: CallKind
    bound: float
    began: float
    # Sum of looks, not of clock time: while this process did not run, the other may not have run either. Time in which
    # the other was starved of a processor counts less.
    seconds: float = 0.0
    pids: set[int] | None = None  # processes that got the call; found once the call is doubtful
    starved: Starved = field(default_factory=Starved)
    names: Names = field(default_factory=current)  # of its requests, for logs

    def look(self, processes: Processes, now: float) -> bool:
        """Return whether an answer may still come: when a process ends, Triton never answers some of its calls."""
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
    """Owns the open calls, and the mean time of calls by model and size. A size is the bit length of a token count."""

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
        self._means: dict[CallKind, tuple[int, float]] = {}  # calls, and the mean of their seconds
        self._patience: dict[CallKind, float] = {}  # factor on the timeout

    @contextmanager
    def call(
        self, model: str, tokens: int, unknown: float = UNKNOWN_SECONDS, least: float = LEAST_SECONDS
    ) -> Iterator[None]:
        """Watch a call that computes `tokens` tokens. Its timeout is `unknown` seconds until enough calls of its kind
        were seen, then at least `least`. Any thread may call."""
        kind, began = (model, tokens.bit_length()), self._now()
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
        with self._watched(kind, unknown if calls < KNOWN_CALLS else max(least, PASSES * mean)):
            yield
        taken = self._now() - began
        with self._lock:
            calls, mean = self._means.get(kind, (0, 0.0))
            keep = min(OLD, calls / (calls + 1))
            self._means[kind] = calls + 1, keep * mean + (1 - keep) * taken

    def question(self, model: str) -> AbstractContextManager[None]:
        """Watch a call that takes a model no time, for example to ask for its facts. Any thread may call."""
        return self._watched((model, QUESTION), QUESTION_SECONDS)

    @contextmanager
    def _watched(self, kind: CallKind, bound: float) -> Iterator[None]:
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
        """Look at the open calls; to be called every LOOK_SECONDS. Forgets the means of a model that hangs."""
        with self._lock:
            calls = dict(self._open)
        now = self._now()
        lost = {key for key, call in calls.items() if not call.look(self._processes, now)}  # unlocked: calls need it
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
                log.warning("%s has not answered for %.1f s; killing its process", model, call.seconds)
            self._end(call.pids or ())
