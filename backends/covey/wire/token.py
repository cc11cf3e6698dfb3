"""The token that the models of one server know and its clients do not: the launcher gives it to tritonserver's
processes."""

from __future__ import annotations

import hmac
import os

VARIABLE = "COVEY_TOKEN"
BITS = 63  # fits a message as a non-negative number of two int32


def token() -> int:
    """Return this server's token; 0 where no launcher set one, as in tests and in one process."""
    return int(os.environ.get(VARIABLE) or "0", 16) & ((1 << BITS) - 1)


def same(given: int, own: int) -> bool:
    """Return whether a token is the server's own, in a time that does not tell how much of it is."""
    return hmac.compare_digest(*(token.to_bytes(8, "little", signed=True) for token in (given, own)))
