"""Who calls a target or drafter, and what its last message was answered.

A caller whose answer was lost sends the message again, under the same number. Its work was done and is not done twice:
it gets the answer that is stored, or hears again that the work failed. A caller of another origin is a new incarnation
of the orchestrator, which knows nothing of the tags that the one before it opened and so would never free them. One
caller at a time; with several, this and the tags would be kept by origin.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from covey.errors import PortError

Reply = TypeVar("Reply")

UNNUMBERED = 0  # a message that nobody sends again


class Caller(Generic[Reply]):
    """Owns the caller's origin, the number of its last message, and the answer to that."""

    def __init__(self) -> None:
        self._origin: int | None = None
        self._sequence = UNNUMBERED
        self._reply: Reply | None = None

    def answer_to(self, origin: int, sequence: int) -> Reply | None:
        """What the message was answered, None when it has not come before; raises PortError when it was begun and
        never answered. Does not mutate."""
        if sequence == UNNUMBERED or (origin, sequence) != (self._origin, self._sequence):
            return None
        if self._reply is None:
            raise PortError(f"message {sequence} failed when it first came")
        return self._reply

    def begin(self, origin: int, sequence: int) -> bool:
        """Take up a message; whether it is of another caller than the one before it, so that all tags must be
        closed."""
        another = self._origin not in (None, origin)
        self._origin, self._sequence, self._reply = origin, sequence, None
        return another

    def answered(self, reply: Reply) -> None:
        """Store the answer to the message that was begun last."""
        self._reply = reply
