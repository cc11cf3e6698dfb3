"""How fast rounds go, learnt from those that are over: what estimates of a request's future rest on.

Sums that forget: a round counts 1/e after `MEMORY` others. Nothing is known before the first round.
"""

from __future__ import annotations

import math

MEMORY = 64  # rounds
WINDOW = 512  # rounds in one of the two windows that the fastest is looked for in


class Pace:
    """Owns the sums. Changed by the engine's thread alone."""

    def __init__(self) -> None:
        self._row_seconds = self._tokens = 0.0  # time spent by rows that decode, and tokens that they got
        self._plain_seconds = self._plain_rounds = 0.0  # rounds in which no prompt was read
        self._seconds = self._beside = self._weight = 0.0  # of all rounds, and of them what no pass took
        self._rows = self._drafts = 0.0  # rows that decode, and drafts of them that were verified
        self._extra_seconds = self._prompt_tokens = 0.0  # what the other rounds took beyond such a one
        self._least = self._least_before = math.inf
        self._rounds = 0

    def update(
        self, seconds: float, rows: int, tokens: int, prompt_tokens: int, *, beside: float = 0.0, drafts: int = 0
    ) -> None:
        """A round took so long, and so long of it no pass: in it so many rows decoded, had so many drafts verified and
        got so many tokens, and so much of prompts was read."""
        keep = 1.0 - 1.0 / MEMORY
        self._seconds, self._weight = self._seconds * keep + seconds, self._weight * keep + 1
        self._beside = self._beside * keep + beside
        self._rows, self._drafts = self._rows * keep + rows, self._drafts * keep + drafts
        if prompt_tokens:
            self._extra_seconds = self._extra_seconds * keep + max(0.0, seconds - self.round_seconds)
            self._prompt_tokens = self._prompt_tokens * keep + prompt_tokens
        else:
            self._plain_seconds = self._plain_seconds * keep + seconds
            self._plain_rounds = self._plain_rounds * keep + 1
        if rows and tokens:
            self._row_seconds = self._row_seconds * keep + rows * seconds
            self._tokens = self._tokens * keep + tokens
            self._least = min(self._least, rows * seconds / tokens)
            self._rounds += 1
            if self._rounds % WINDOW == 0:
                self._least_before, self._least = self._least, math.inf

    @property
    def seconds(self) -> float:
        """The mean time of recent rounds, whatever they did; 0 where none was seen."""
        return self._seconds / self._weight if self._weight else 0.0

    @property
    def beside(self) -> float:
        """Seconds of a round outside the target."""
        return self._beside / self._weight if self._weight else 0.0

    @property
    def row_tokens(self) -> float:
        """Tokens that a row gets in a round."""
        return self._tokens / self._rows if self._rows else 0.0

    @property
    def drafts(self) -> float:
        """Drafts of a row that are verified in a round."""
        return self._drafts / self._rows if self._rows else 0.0

    @property
    def round_seconds(self) -> float:
        """The mean time of recent rounds that read no prompt; 0 where none was seen."""
        return self._plain_seconds / self._plain_rounds if self._plain_rounds else 0.0

    @property
    def token_seconds(self) -> float:
        """Per token of a row that decodes, whatever else its rounds did; 0 where none was seen."""
        return self._row_seconds / self._tokens if self._tokens else 0.0

    @property
    def fastest(self) -> float:
        """The least that a row's token took in any recent round; 0 where none was seen."""
        least = min(self._least, self._least_before)
        return least if least < math.inf else 0.0

    def reading(self, tokens: int, per_round: int) -> float:
        """Seconds until so many tokens of prompts have been read, at most so many in a round."""
        each = self._extra_seconds / self._prompt_tokens if self._prompt_tokens else 0.0
        return tokens * each + -(-tokens // per_round) * self.round_seconds
