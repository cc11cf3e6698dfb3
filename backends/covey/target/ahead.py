"""The next plain pass, computed while the answer to the last one travels.

After a pass the next message most likely asks for the same rows, one token on, and a plain pass over them needs nothing
that the message will bring, so the target's one thread that computes begins with it at once; the message then collects
it. It is enough for rows that decode plainly, and, under the coupled rule, for those whose first draft is another token
than it drew. What the message asks for otherwise is computed as ever, and what it does not ask for is dropped: a pass
commits nothing by itself, and the KV that it wrote is written again, with the same values.

A guess that fails costs a pass, so for how many rows guesses would have been enough is watched all the time, and they
are made only while they are for most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from dataclasses import dataclass

from covey.kv.sequences import Sequence
from covey.runtimes.compute import Compute
from covey.target.verification import Verified

__all__ = ["Ahead", "Precomputed"]

WORTH = 0.7  # share of guesses that must come true: a failed one costs a pass, a good one saves the way to and fro
FORGETTING = 0.1
LAUNCHING = 0.002  # seconds at most that a guess waits until its pass has been launched


@dataclass(frozen=True, slots=True)
class Precomputed:
    """A pass's result, and how many tokens the sequence of each row of `verified` had."""

    index: dict[Sequence, int]  # to its row; holds the sequences, lest a new one takes the identity of one that ended
    lengths: list[int]
    verified: Verified
    seconds: float

    def row(self, sequence: Sequence) -> int | None:
        """Return the row of a sequence that has not changed since."""
        row = self.index.get(sequence)
        return row if row is not None and self.lengths[row] == sequence.num_tokens else None

    def first_tokens(self) -> list[int]:
        """Return the token of each row, -1 of one that has none."""
        tokens = iter(self.verified.tokens.tolist())
        return [-1 if faulty else next(tokens) for faulty in self.verified.faulty.tolist()]


class Ahead:
    """Owns the guess in flight; `compute` is a plain pass over rows that changes none of them, made in `thread`.

    A device that is given its passes works on them while nobody runs Python; `compute` sets `launched` when it has done
    so. Only one thread at a time can run Python, so that `guess` waits for that: else the device would wait until the
    caller has nothing left to do, and running ahead would save nothing."""

    def __init__(
        self,
        compute: Callable[[list[Sequence]], Verified],
        thread: Compute,
        launched: threading.Event | None = None,
    ) -> None:
        self._compute = compute
        self._thread = thread
        self._launched = launched
        self._running: Future[Precomputed] | None = None
        self._guess: set[int] | None = None  # tags that the next message should ask for, computed or not
        self._came_true = 1.0

    def collect(self) -> Precomputed | None:
        """Wait for the pass in flight, if any: until it has ended nothing that it reads may change."""
        running, self._running = self._running, None
        return running.result() if running is not None else None

    def judge(self, tags: Rows[int], share: float) -> None:
        """Judge the last guess by what the next message asks for: its rows, and the share of them for which a plain
        pass is enough."""
        if self._guess is not None:
            self._came_true += FORGETTING * (share * self._guess.issuperset(tags) - self._came_true)
        self._guess = None

    def guess(self, rows: list[Sequence]) -> None:
        """Begin the pass that the next message will ask for if these rows go on and no others join."""
        if not rows:
            return
        self._guess = {row.tag for row in rows}
        if self._came_true < WORTH:
            return
        if self._launched is not None:
            self._launched.clear()
        self._running = self._thread.submit(self._precompute, rows)
        if self._launched is not None:
            self._launched.wait(LAUNCHING)

    def _precompute(self, rows: list[Sequence]) -> Precomputed:
        started = time.perf_counter()
        lengths = [row.num_tokens for row in rows]
        verified = self._compute(rows)
        index = {row: at for at, row in enumerate(rows)}
        return Precomputed(index, lengths, verified, time.perf_counter() - started)
