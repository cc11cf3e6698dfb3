"""The other servers whose targets a drafter serves: how a message proves whose it is, and names that nobody can take.

A file has a line `NAME SECRET [WEIGHT]` for each server, and is read again when a message comes of one that it did not
have; a weight counts from the drafter's start. A message of a server is sealed with a token made of its
secret; this server's own models use this server's. Whatever origin a message claims, its tags are kept under one that
was drawn for that server and that origin: no sender can name another's tags, nor find out how. All of a server's are of
one group (`covey.wire.ledger`), so that it gains nothing by claiming many; each of this server's own models is one of
its own.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from covey.contracts.errors import PortError, SettingError
from covey.contracts.types import Ints
from covey.process.private import lines, private_text
from covey.wire import codec
from covey.wire.ledger import CALLER_BITS, GROUP_BITS, INCARNATION_BITS
from covey.wire.token import BITS, same

LEAST_SECRET = 16  # characters
MOST_WEIGHT = 1000.0
HERE = ""  # this server itself
MOST_SENDERS = 64  # of one server at a time; the one that was heard least lately makes room for another
READ_SECONDS = 1.0  # between two readings of the file, however many strangers send
log = logging.getLogger("covey.star")
_MEMBER_BITS = CALLER_BITS - GROUP_BITS


@dataclass(frozen=True, slots=True)
class CallingServer:
    """A server that may call, and its share of the time."""

    name: str
    token: int
    weight: float = 1.0  # its share of the drafters' time


def token_of(secret: str) -> int:
    """Return the token that seals the messages of the owner of the secret."""
    digest = hmac.digest(secret.encode(), b"covey drafts", "sha256")
    return int.from_bytes(digest[:8], "big") >> (64 - BITS)


def read(path: str | Path) -> list[CallingServer]:
    """Return the servers of a file."""
    callers: list[CallingServer] = []
    for where, words in lines(private_text(path), path):
        if len(words) not in (2, 3):
            raise SettingError(f"{where}: allowed: NAME SECRET [WEIGHT]")
        if len(words[1]) < LEAST_SECRET:
            raise SettingError(f"{where}: the secret of {words[0]} is shorter than {LEAST_SECRET} characters")
        try:
            weight = float(words[2]) if len(words) == 3 else 1.0
        except ValueError:
            weight = 0.0
        if not 1 / MOST_WEIGHT <= weight <= MOST_WEIGHT:
            allowed = f"allowed: a number from {1 / MOST_WEIGHT} to {MOST_WEIGHT}"
            raise SettingError(f"{where}: got weight {words[2]!r}, {allowed}")
        caller = CallingServer(words[0], token_of(words[1]), weight)
        if any(each.name == caller.name or each.token == caller.token for each in callers):
            raise SettingError(f"{where}: each server has a name and a secret of its own")
        callers.append(caller)
    return callers


class Authenticator:
    """Tells by a message's seal whose it is."""

    def __init__(
        self,
        own: int,
        callers: Iterable[CallingServer] = (),
        again: Callable[[], Iterable[CallingServer]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` is the token of this server's models. `again` reads the others anew, None being no file."""
        self._own, self._again, self._now = own, again, now
        self._read_at = -READ_SECONDS
        self._know(callers)
        self._groups: dict[str, int] = {}
        self._senders: dict[str, OrderedDict[int, int]] = {}  # by server: what was drawn for each that it claims to be

    def caller(self, message: Ints) -> str:
        """Return the sender's name; raises PortError for a message of nobody known. All tokens are compared."""
        given = codec.token_of(message)
        names = self._names(given) or (self._names(given) if self._knows_more() else [])
        if not names:
            raise PortError("the message is not of this server's own models, nor of one that its drafters serve")
        return names[0]

    def _know(self, callers: Iterable[CallingServer]) -> None:
        self._tokens = {HERE: self._own, **{caller.name: caller.token for caller in callers}}
        if not self._own and len(self._tokens) > 1:
            del self._tokens[HERE]  # no launcher drew a token, so anyone could send as one of our own models

    def _names(self, given: int) -> list[str]:
        return [name for name, token in self._tokens.items() if same(given, token)]

    def _knows_more(self) -> bool:
        """Read the file of callers again if it was not read just now; return whether that was done."""
        if self._again is None or self._now() - self._read_at < READ_SECONDS:
            return False
        self._read_at = self._now()
        try:
            self._know(self._again())
        except SettingError as error:
            log.error("%s", error)
            return False
        return True

    def origin(self, caller: str, claimed: int) -> int:
        """Return the origin under which the tags of that sender are kept."""
        who = claimed >> INCARNATION_BITS
        senders = self._senders.setdefault(caller, OrderedDict())
        drawn = senders.get(who)
        if drawn is None:
            drawn = senders.popitem(last=False)[1] if len(senders) >= MOST_SENDERS else self._draw(caller, who)
            senders[who] = drawn
        senders.move_to_end(who)
        return drawn << INCARNATION_BITS | claimed & ((1 << INCARNATION_BITS) - 1)

    def _draw(self, caller: str, who: int) -> int:
        """Draw a number that no other sender has."""
        name = caller or f"{HERE} {who}"  # no server's name has a blank
        if name not in self._groups:
            self._groups[name] = _new(GROUP_BITS, self._groups.values())
        used = [each & (1 << _MEMBER_BITS) - 1 for each in self._senders[caller].values()]
        return self._groups[name] << _MEMBER_BITS | _new(_MEMBER_BITS, used)


def _new(bits: int, used: Collection[int]) -> int:
    while (drawn := secrets.randbits(bits)) in used:
        pass
    return drawn
