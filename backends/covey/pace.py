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
        self._extra_seconds = self._prompt_tokens = 0.0  # what the other rounds took beyond such a one
        self._least = self._least_before = math.inf
        self._rounds = 0

    def update(self, seconds: float, rows: int, tokens: int, prompt_tokens: int) -> None:
        """A round took so long: in it so many rows decoded and got so many tokens, and so much of prompts was read."""
        keep = 1.0 - 1.0 / MEMORY
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
    def round_seconds(self) -> float:
        """Of a round that reads no prompt; 0 where none was seen."""
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
