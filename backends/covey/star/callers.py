"""Which other servers' targets a drafter serves, how a message proves whose it is, and names that nobody can take.

A file has a line `NAME SECRET [WEIGHT]` for each server. A message of that server is sealed with a token made of its
secret; this server's own models use this server's. Whatever origin a message claims, its tags are kept under one made
of the server's name, that origin and a key of this process: no sender can name another's tags, nor find out how.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from covey.errors import PortError, SettingError
from covey.ledger import CALLER_BITS, INCARNATION_BITS
from covey.types import Ints
from covey.wire import codec
from covey.wire.token import BITS, same

LEAST_SECRET = 16  # characters
HERE = ""  # this server itself


@dataclass(frozen=True, slots=True)
class Caller:
    """Another server."""

    name: str
    token: int
    weight: float = 1.0  # its share of the drafters' time


def token_of(secret: str) -> int:
    """What seals the messages of whoever has the secret."""
    digest = hmac.digest(secret.encode(), b"covey drafts", "sha256")
    return int.from_bytes(digest[:8], "big") >> (64 - BITS)


def private_text(path: str | Path) -> str:
    """A file that nobody else may read."""
    try:
        mode = Path(path).stat().st_mode
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: cannot be read: {error}") from None
    if mode & 0o077:
        raise SettingError(f"{path}: others may read it, and it holds secrets: chmod 600 {path}")
    return text


def read(path: str | Path) -> list[Caller]:
    """The servers of a file."""
    callers: list[Caller] = []
    for number, line in enumerate(private_text(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) not in (2, 3):
            raise SettingError(f"{where}: allowed: NAME SECRET [WEIGHT]")
        if len(words[1]) < LEAST_SECRET:
            raise SettingError(f"{where}: the secret of {words[0]} is shorter than {LEAST_SECRET} characters")
        try:
            weight = float(words[2]) if len(words) == 3 else 1.0
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf"):
            raise SettingError(f"{where}: got weight {words[2]!r}, allowed: a number above 0")
        caller = Caller(words[0], token_of(words[1]), weight)
        if any(each.name == caller.name or each.token == caller.token for each in callers):
            raise SettingError(f"{where}: each server has a name and a secret of its own")
        callers.append(caller)
    return callers


class Door:
    """Tells whose a message is."""

    def __init__(self, own: int, callers: Iterable[Caller] = ()) -> None:
        """`own`: the token of this server's models."""
        self._tokens = {HERE: own, **{caller.name: caller.token for caller in callers}}
        self._key = secrets.token_bytes(32)

    def caller(self, message: Ints) -> str:
        """The sender's name; raises PortError for a message of nobody known. All tokens are compared."""
        given = codec.token_of(message)
        names = [name for name, token in self._tokens.items() if same(given, token)]
        if not names:
            raise PortError("the message is not of this server's own models, nor of one that its drafters serve")
        return names[0]

    def origin(self, caller: str, claimed: int) -> int:
        """What the tags of that sender are kept under."""
        who = (claimed >> INCARNATION_BITS).to_bytes(8, "big")
        digest = hmac.digest(self._key, caller.encode() + b"\0" + who, "sha256")
        own = int.from_bytes(digest[:8], "big") >> (64 - CALLER_BITS)
        return own << INCARNATION_BITS | claimed & ((1 << INCARNATION_BITS) - 1)


def weights(callers: Iterable[Caller]) -> Mapping[str, float]:
    return {caller.name: caller.weight for caller in callers}
