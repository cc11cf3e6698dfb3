"""Replays hits as rounds: how many drafts of a drafter would have been accepted.

Under the coupled rule, verification ends a draft at its first miss. So a drafter's hits in emitted text, cut into
rounds, give the accepted lengths that its drafts would have had. With depth 3:

    hits     1 1 0 1 1 1 - 0 1 0      1 the emitted token, 0 another one
    rounds   1 1 0|1 1 1 -|0|1 0      accepted: 2, 3, 0, 1

A fully accepted draft is followed by the target's bonus token (-), for which there was no draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from covey.contracts.types import Hit


class Replay:
    """The rounds of one drafter in one text, which arrives in pieces."""

    __slots__ = ("_depth", "_right", "end")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._right = 0  # accepted so far in the open round
        self.end = 0  # one past the position of the last hit taken

    def take(self, start: int, hits: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the rounds that end within the new part of `hits`, which begin at `start`, as (drafts tried, drafts
        accepted). A gap before `start` discards the open round."""
        if start > self.end:
            self.end, self._right = start, 0
        for hit in hits[self.end - start :]:
            self.end += 1
            if self._right == self._depth:
                self._right = 0  # the bonus token
            elif hit == Hit.HIT:
                self._right += 1
                if self._right == self._depth:
                    yield self._depth, self._depth
            else:
                yield self._right + 1, self._right
                self._right = 0

    def skip(self, position: int) -> None:
        """Skip the text before this position: the drafter drafted there itself."""
        if position > self.end:
            self.end, self._right = position, 0
