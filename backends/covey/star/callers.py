"""Authenticates the other servers whose targets a drafter serves, and gives their tags origins that no sender can
forge.

A file holds a line `NAME SECRET [WEIGHT]` for each server. It is read again when a message has an unknown seal; a
weight counts from the drafter's start. A server seals its messages with a token made from its secret. This server's own
models use this server's token. Tags are kept under an origin that is drawn for each server and claimed origin, so no
sender can name or find another's tags. All origins of a server share one group (`covey.wire.ledger`), so claiming many
gains it nothing. Each model of this server has its own group.
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
from covey.drafters.calls import HERE
from covey.process.private import lines, private_text
from covey.wire import codec
from covey.wire.ledger import CALLER_BITS, GROUP_BITS, INCARNATION_BITS
from covey.wire.token import BITS, same

LEAST_SECRET = 16  # characters
MOST_WEIGHT = 1000.0
MOST_SENDERS = 64  # of one server at a time; a new one replaces the one that was silent longest
READ_SECONDS = 1.0  # least time between two reads of the file, however many unknown messages come
log = logging.getLogger("covey.star")
_MEMBER_BITS = CALLER_BITS - GROUP_BITS


@dataclass(frozen=True, slots=True)
class CallingServer:
    """A server that may call, and its share of the drafters' time."""

    name: str
    token: int
    weight: float = 1.0


def token_of(secret: str) -> int:
    """Return the token that seals the messages of this secret's owner."""
    digest = hmac.digest(secret.encode(), b"covey drafts", "sha256")
    return int.from_bytes(digest[:8], "big") >> (64 - BITS)


def read(path: str | Path) -> list[CallingServer]:
    """Return the servers in the file. Raises SettingError for a bad line."""
    callers: list[CallingServer] = []
    for where, words in lines(private_text(path), path):
        if len(words) not in (2, 3):
            raise SettingError(f"{where}: a line must be NAME SECRET [WEIGHT]")
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
            raise SettingError(f"{where}: another server has the same name or secret; each needs its own")
        callers.append(caller)
    return callers


class Authenticator:
    """Finds a message's sender by its seal."""

    def __init__(
        self,
        own: int,
        callers: Iterable[CallingServer] = (),
        again: Callable[[], Iterable[CallingServer]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` is the token of this server's models. `again` reads the callers' file anew; None if there is no
        file."""
        self._own, self._again, self._now = own, again, now
        self._read_at = -READ_SECONDS
        self._know(callers)
        self._groups: dict[str, int] = {}
        self._senders: dict[str, OrderedDict[int, int]] = {}  # by server: claimed number to drawn one

    def caller(self, message: Ints) -> str:
        """Return the sender's name; raises PortError for an unknown seal. Compares the seal with every token."""
        given = codec.token_of(message)
        names = self._names(given) or (self._names(given) if self._knows_more() else [])
        if not names:
            raise PortError("unknown seal: the message is not of this server, nor of a listed caller")
        return names[0]

    def _know(self, callers: Iterable[CallingServer]) -> None:
        self._tokens = {HERE: self._own, **{caller.name: caller.token for caller in callers}}
        if not self._own and len(self._tokens) > 1:
            del self._tokens[HERE]  # without a launcher's token anyone could pass for one of our own models

    def _names(self, given: int) -> list[str]:
        return [name for name, token in self._tokens.items() if same(given, token)]

    def _knows_more(self) -> bool:
        """Read the callers' file again unless that was just done. Return whether it was read."""
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
        """Return the origin under which this sender's tags are kept."""
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
        name = caller or f"{HERE} {who}"  # server names contain no blank
        if name not in self._groups:
            self._groups[name] = _new(GROUP_BITS, self._groups.values())
        used = [each & (1 << _MEMBER_BITS) - 1 for each in self._senders[caller].values()]
        return self._groups[name] << _MEMBER_BITS | _new(_MEMBER_BITS, used)


def _new(bits: int, used: Collection[int]) -> int:
    while (drawn := secrets.randbits(bits)) in used:
        pass
    return drawn
