"""Computes the next pass while the reply to the last one travels.

The next message most likely asks for the same rows, with the drafts that the target's own head made for them
(`covey.target.own_head`), or with none. A pass over these needs nothing from that message, so the target's computing
thread begins it at once. The message takes its result if it has the same drafts for each of its rows. Otherwise the
pass is stopped, or its result dropped, and the message is computed as usual. A pass commits nothing, and a later one
overwrites its KV.

A failed guess costs time: little if the model can stop, else a pass. So the share of right guesses is tracked all the
time, and guesses are computed only while it is high.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Trees
from covey.kv.sequences import Sequence
from covey.models.lanes import Stop
from covey.runtimes.compute import Compute
from covey.target.verification import Verified

__all__ = ["Ahead", "Precomputed"]

log = logging.getLogger("covey.target")

# The least share of good guesses, and the weight of the last one. A good one saves the message's way to and fro. A
# failed one costs a pass, or if that can stop, some time of drafters.
WORTH, FORGETTING = 0.9, 0.1
STOPPABLE_WORTH, STOPPABLE_FORGETTING = 0.4, 0.3
LAUNCHING = 0.002  # the longest that a guess waits for its pass to be launched, in seconds


@dataclass(frozen=True, slots=True)
class Precomputed:
    """A pass's result, and how many tokens each row's sequence had at the time."""

    index: dict[Sequence, int]  # to its row; keeps the sequences alive, so that no new one gets the id of an old one
    lengths: list[int]
    drafts: list[int]  # how many of each row were verified
    verified: Verified
    seconds: float

    def row(self, sequence: Sequence) -> int | None:
        """Return the row of a sequence, or None if it is not there or has changed since."""
        row = self.index.get(sequence)
        return row if row is not None and self.lengths[row] == sequence.num_tokens else None

    def drafts_of(self, rows: Rows[int]) -> int:
        """Return how many drafts of these rows were verified."""
        return sum(self.drafts[row] for row in rows)


class Ahead:
    """Owns the guess in flight. `compute` runs a pass over rows and their drafts, in `thread`, and changes none of
    them. It returns None if it was stopped; only a `stoppable` one ever is.

    A GPU works on its pass while Python does other work; `compute` sets `launched` as soon as the GPU has the pass.
    Only one thread can run Python at a time, so `guess` waits for `launched`. Otherwise the GPU would wait until the
    caller has nothing left to do, and running ahead would save nothing."""

    def __init__(
        self,
        compute: Callable[[list[Sequence], Trees, Stop], Verified | None],
        thread: Compute,
        launched: threading.Event | None = None,
        *,
        stoppable: bool = False,
    ) -> None:
        self._compute = compute
        self._thread = thread
        self._launched = launched
        self._running: Future[Precomputed | None] | None = None
        self._stop = np.zeros(1, np.int64)  # of the guess in flight
        self._worth, self._forgetting = WORTH, FORGETTING
        if stoppable:
            self._worth, self._forgetting = STOPPABLE_WORTH, STOPPABLE_FORGETTING
        # The drafts of each tag that the next message should ask for, whether computed or not.
        self._guess: dict[int, list[int]] | None = None
        self._came_true = 1.0

    def collect(self, *, wanted: bool) -> Precomputed | None:
        """Wait for the pass in flight, if any, and return its result if it is `wanted`. Until it has ended, its inputs
        must not change."""
        running, self._running = self._running, None
        if running is None:
            return None
        if not wanted:
            self._stop[0] = 1
        try:
            found = running.result()
        except Exception:
            if wanted:
                raise
            log.exception("a pass that nobody asked for has failed")
            return None
        return found if wanted else None

    def expects(self, tags: Rows[int], trees: Trees) -> bool:
        """Return whether the last guess has these rows with these drafts. Does not mutate."""
        guess, bounds, tokens, parents = (
            self._guess,
            trees.offsets.tolist(),
            trees.tokens.tolist(),
            trees.parents.tolist(),
        )
        return guess is not None and all(
            guess.get(tag) == tokens[start:end] and parents[start:end] == list(range(-1, end - start - 1))
            for tag, start, end in zip(tags, bounds, bounds[1:])
        )

    def score(self, *, right: bool) -> None:
        """Score the last guess, if there was one."""
        if self._guess is not None:
            self._came_true += self._forgetting * (right - self._came_true)
        self._guess = None

    def guess(self, rows: list[Sequence], trees: Trees) -> None:
        """Begin the pass that the next message will need if these rows go on with these drafts, and no others join."""
        if not rows:
            return
        bounds, tokens = trees.offsets.tolist(), trees.tokens.tolist()
        self._guess = {row.tag: tokens[start:end] for row, start, end in zip(rows, bounds, bounds[1:])}
        if self._came_true < self._worth:
            return
        self._stop = np.zeros(1, np.int64)
        if self._launched is not None:
            self._launched.clear()
        self._running = self._thread.submit(self._precompute, (rows, trees, self._stop))
        if self._launched is not None:
            self._launched.wait(LAUNCHING)

    def _precompute(self, given: tuple[list[Sequence], Trees, Stop]) -> Precomputed | None:
        started, (rows, trees, stop) = time.perf_counter(), given
        lengths = [row.num_tokens for row in rows]
        verified = self._compute(rows, trees, stop)
        if verified is None:
            return None
        index = {row: at for at, row in enumerate(rows)}
        return Precomputed(index, lengths, trees.sizes.tolist(), verified, time.perf_counter() - started)
