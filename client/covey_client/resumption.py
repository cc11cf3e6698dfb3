"""Resumes an answer whose connection broke: sends the request again with its seed, and drops the part that has come.

The same prompt, settings and seed give the same answer, so the repetition begins with the part that has come. This is
checked. If the two differ (under the rejection rule, or with fast numerics) the answer ends with an error.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from covey_client.backoff import Backoff
from covey_client.errors import ConnectionLost, CoveyClientError, Overloaded, ServerError
from covey_client.request import Request
from covey_client.response import Chunk

FIRST_REST, LONGEST_REST = 0.25, 5.0  # seconds between attempts
PATIENCE = 300.0  # seconds from a break until something new must have come, where the deadline is later
DEAD = "not healthy"  # Triton's message for a model whose process died


class Resumption:
    """The part of one answer that has come. Knows no connection."""

    def __init__(
        self,
        build: Callable[[Mapping[str, object]], Request],
        settings: Mapping[str, object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`build` makes a request of settings."""
        self._build, self._settings, self._now = build, dict(settings), now
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._repeating = False  # while it is true, the next three are valid
        self._text = ""  # the part before the break
        self._again_tokens: list[int] = []  # of the repetition
        self._again_text = ""
        self._backoff = Backoff(FIRST_REST, LONGEST_REST, now)
        self._broke: float | None = None

    def request(self) -> Request:
        """Return the request to send now."""
        self._again_tokens, self._again_text, self._text = [], "", "".join(self._texts)
        self._repeating = bool(self._tokens or self._text)
        return self._build(self._settings)

    def rest(self, error: CoveyClientError) -> float | None:
        """Return how long to wait before the next attempt; None if the error ends the answer."""
        dead = isinstance(error, ServerError) and DEAD in str(error)
        begun = bool(self._tokens) or self._broke is not None
        busy = isinstance(error, Overloaded) and begun  # before anything has come it is the answer
        if not (isinstance(error, ConnectionLost) or dead or busy) or isinstance(error, CannotGoOn):
            return None
        now = self._now()
        self._broke = now if self._broke is None else self._broke
        if now - self._broke > PATIENCE:
            return None
        asked = error.retry_after if isinstance(error, Overloaded) else None
        rest = self._backoff.failed()
        return min(asked or rest, LONGEST_REST)

    def new(self, chunk: Chunk) -> Chunk | None:
        """Return the part of a chunk that has not come before; None if there is none."""
        found = self._behind_known(chunk) if self._repeating else chunk
        if not found.tokens and not found.text and not found.finish_reason:
            return None
        self._tokens += found.tokens
        self._texts.append(found.text)
        self._settings["seed"] = chunk.seed
        self._backoff.succeeded()
        self._broke = None
        return found

    def _behind_known(self, chunk: Chunk) -> Chunk:
        at = len(self._again_tokens), len(self._again_text)
        self._again_tokens += chunk.tokens
        self._again_text += chunk.text
        both = min(len(self._tokens), len(self._again_tokens)), min(len(self._text), len(self._again_text))
        same = self._tokens[at[0] : both[0]] == self._again_tokens[at[0] : both[0]]
        if not same or self._text[at[1] : both[1]] != self._again_text[at[1] : both[1]]:
            raise CannotGoOn("the connection was lost, and asking again gave another answer")
        known = max(0, len(self._tokens) - at[0])
        text = self._again_text[max(len(self._text), at[1]) :]
        top = known * len(chunk.top_ids) // max(1, len(chunk.tokens))  # where the first new token's are
        return dataclasses.replace(
            chunk,
            text=text,
            tokens=chunk.tokens[known:],
            log_probs=chunk.log_probs[known:],
            top_ids=chunk.top_ids[top:],
            top_log_probs=chunk.top_log_probs[top:],
            prompt_ids=(),  # which the first response had
            prompt_log_probs=(),
            prompt_top_ids=(),
            prompt_top_log_probs=(),
        )


class CannotGoOn(ConnectionLost):
    """The repetition is another answer."""
