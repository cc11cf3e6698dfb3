"""The token that the models of one server know and its clients do not. The launcher gives it to tritonserver's
processes."""

from __future__ import annotations

import hmac
import os

VARIABLE = "COVEY_TOKEN"
BITS = 63  # two int32 of a message hold it as a non-negative number


def token() -> int:
    """Return this server's token, or 0 if no launcher set one, as in tests."""
    return int(os.environ.get(VARIABLE) or "0", 16) & ((1 << BITS) - 1)


def same(given: int, own: int) -> bool:
    """Return whether a token is the server's own, in a time that does not depend on how many bytes match."""
    return hmac.compare_digest(*(token.to_bytes(8, "little", signed=True) for token in (given, own)))
