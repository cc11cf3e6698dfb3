"""Who calls a target or drafter, and what its last message was answered.

A caller that got no answer sends the message again, under the same number: its work is done, so it gets the answer
that is stored. A caller of another origin is a new incarnation of the orchestrator, which knows nothing of the tags
that the one before it opened and so would never free them. One caller at a time; with several, this and the tags would
be kept by origin.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Reply = TypeVar("Reply")

UNNUMBERED = 0  # a message that nobody sends again


class Caller(Generic[Reply]):
    """Owns the caller's origin and the last answer to it."""

    def __init__(self) -> None:
        self._origin: int | None = None
        self._sequence = UNNUMBERED
        self._reply: Reply | None = None

    def answer_to(self, origin: int, sequence: int) -> Reply | None:
        """What the message was answered, when it was the last one. Does not mutate."""
        if sequence == UNNUMBERED or (origin, sequence) != (self._origin, self._sequence):
            return None
        return self._reply

    def is_new(self, origin: int) -> bool:
        """Whether this is another caller than that of the last message, so that all tags must be closed. Takes the new
        one, and drops what the old one was answered."""
        if origin == self._origin:
            return False
        known, self._origin = self._origin is not None, origin
        self._reply = None
        return known

    def answered(self, sequence: int, reply: Reply) -> None:
        """Store the answer to the message just served."""
        self._sequence, self._reply = sequence, reply
