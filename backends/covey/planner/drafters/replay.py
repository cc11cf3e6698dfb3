"""Replays hits as rounds: how many drafts a drafter would have had accepted, had it drafted.

Under the coupled rule a draft is judged only after those before it were accepted, so the string of a drafter's hits in
emitted text, cut into rounds, has the accepted lengths that its drafts would have had. With depth 3:

    hits     1 1 0 1 1 1 - 0 1 0      1 the token that stands, 0 another one
    rounds   1 1 0|1 1 1 -|0|1 0      accepted: 2, 3, 0, 1

After a draft accepted whole comes a token of the target's own (-), of which no draft was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from covey.contracts.types import Hit


class Replay:
    """The rounds of one drafter in one text, which comes in pieces."""

    __slots__ = ("_depth", "_right", "end")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._right = 0  # accepted in the round that is open
        self.end = 0  # the position behind the last hit that was taken

    def take(self, start: int, hits: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the rounds that end within the new part of a string that begins at `start`, as (drafts looked at,
        drafts accepted). A gap before it ends the open round, of which nothing is known."""
        if start > self.end:
            self.end, self._right = start, 0
        for hit in hits[self.end - start :]:
            self.end += 1
            if self._right == self._depth:
                self._right = 0  # the target's own token
            elif hit == Hit.HIT:
                self._right += 1
                if self._right == self._depth:
                    yield self._depth, self._depth
            else:
                yield self._right + 1, self._right
                self._right = 0

    def skip(self, position: int) -> None:
        """Leave out what comes before this position: the drafter drafted there itself."""
        if position > self.end:
            self.end, self._right = position, 0
