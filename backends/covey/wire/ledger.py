"""The ledger of a target or drafter: its callers, the tags that each has open, and the reply to each caller's last
message.

A caller that lost a reply sends the message again under the same number. The work is not done twice: the caller gets
the stored reply, or an error if the work failed.

An origin names a caller and its incarnation. The callers of one server are a group: their first bits are alike
(`covey.star.callers`), and they share the room of one caller.

    |<- 31 bits: the caller; 15 of them its group ->|<- 32 bits: its incarnation ->|

Tags are kept by origin, so several callers can share one drafter and each sees only its own tags. A caller's new
incarnation cannot free the old one's tags, so its first message closes them. A caller that never comes back is
forgotten when another one calls after its lease. A lone caller keeps its tags however long it is silent. When room is
short, silent callers lose tags first, then the group that holds most. A caller that is not silent never loses a tag to
a larger group. A message older than its caller's last is refused as outdated.

Messages are answered one at a time, or those of several callers together. This module knows neither tensors nor Triton.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from covey.contracts.errors import PortError
from covey.contracts.types import DraftReply, DraftWork, Open, TargetReply, TargetWork
from covey.process.log_about import about

log = logging.getLogger("covey.ledger")

CALLER_BITS, INCARNATION_BITS = 31, 32
GROUP_BITS = 15  # of the caller's bits
UNNUMBERED = 0  # the number of a message that is never sent again
MOST_TAGS = 2048  # of a drafter; a forgotten tag is opened again with all its tokens
SILENT = 5.0  # seconds without a message after which a caller's tags are the first to be forgotten
LEASE = 600.0  # seconds without a message after which a caller counts as gone


def new_origin(caller: str) -> int:
    """Return the origin of a new incarnation of `caller`. The same name is always the same caller."""
    who = int.from_bytes(hashlib.sha256(caller.encode()).digest()[:4], "big") >> (32 - CALLER_BITS)
    return who << INCARNATION_BITS | secrets.randbits(INCARNATION_BITS)


def group_of(origin: int) -> int:
    return group_of_sender(origin >> INCARNATION_BITS)


def group_of_sender(who: int) -> int:
    """Return the group of a caller, given without its incarnation."""
    return who >> (CALLER_BITS - GROUP_BITS)


class Text(Protocol):
    """The state that a ledger keeps for a tag."""

    @property
    def num_tokens(self) -> int:
        """Return how many of the tag's tokens the state holds."""
        ...


State = TypeVar("State", bound=Text)
Work = TypeVar("Work", TargetWork, DraftWork)
Reply = TypeVar("Reply", TargetReply, DraftReply)


@dataclass(slots=True, eq=False)
class _LastMessage(Generic[Reply]):
    """A caller's last message: the origin that sent it, its number, its reply, and when its work began."""

    origin: int
    sequence: int
    reply: Reply | None
    began: float


class Ledger(Generic[State, Reply]):
    """Owns the states of open tags, the least recently used first, and each caller's last message with its reply."""

    def __init__(
        self,
        opened: Callable[[Open], State],
        closed: Callable[[State, bool], None],
        *,
        exclusive: bool = False,
        epoch: int = 0,
        most: int = MOST_TAGS,
        lease: float = LEASE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`opened` makes the state of a tag. `closed` gets every state that is dropped, and whether its request has
        ended; if not, the tag was opened again or forgotten to make room. An `exclusive` ledger has one caller at a
        time, which relies on every tag that it opened. None is forgotten, and a message of another origin closes all.
        An `epoch` of 0 draws a random one."""
        self.epoch = epoch or secrets.randbelow(1 << 31) + 1
        self._opened = opened
        self._closed = closed
        self._exclusive = exclusive
        self._most = most
        self._lease = lease
        self._now = now
        self._open: OrderedDict[tuple[int, int], State] = OrderedDict()
        self._names: dict[tuple[int, int], str] = {}  # of the tags' requests
        self._callers: dict[int, _LastMessage[Reply]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def states(self) -> Iterable[State]:
        """Return the state of every open tag. Does not mutate."""
        return self._open.values()

    def tags(self) -> set[tuple[int, int]]:
        """Return the origin and tag of every open tag. Does not mutate."""
        return set(self._open)

    def get(self, work: Work, tag: int) -> State | None:
        """Return the state of this tag of the message's caller, stale or not. Does not mutate."""
        return self._open.get((work.origin, tag))

    def once(self, work: Work, answer: Callable[[Work], Reply]) -> Reply:
        """Return the stored reply if the message came before, else `answer(work)`, which must call `update` before it
        changes anything. Raises PortError if the message came before but its work failed."""
        (reply,) = self.together([work], lambda works: [answer(each) for each in works])
        return reply

    def together(self, works: list[Work], answer: Callable[[list[Work]], list[Reply]]) -> list[Reply]:
        """Answer messages of several callers together, each as `once` does."""
        stored = [self._stored(work) for work in works]
        new = [work for work, reply in zip(works, stored) if reply is None]
        with about(partial(self._named, new)):
            answers = iter(answer(new) if new else ())
        replies = []
        for work, reply in zip(works, stored):
            if reply is None:
                reply = self._callers[self._who(work.origin)].reply = next(answers)
            replies.append(reply)
        while not self._exclusive and len(self._open) > self._most:
            ((largest, _count),) = Counter(group_of(origin) for origin, _tag in self._open).most_common(1)
            self._close(next(key for key in self._open if group_of(key[0]) == largest), ended=False)
        return replies

    def _named(self, works: Sequence[Work]) -> list[str]:
        """Return the names of the messages' requests, for logs."""
        return [self._names.get((work.origin, tag), str(tag)) for work in works for tag in work.tags.tolist()]

    def _stored(self, work: Work) -> Reply | None:
        caller = self._callers.get(self._who(work.origin))
        if caller is None or work.sequence == UNNUMBERED or caller.origin != work.origin:
            return None
        if work.sequence < caller.sequence:
            raise PortError(f"message {work.sequence} came after message {caller.sequence}")
        if work.sequence > caller.sequence:
            return None
        if caller.reply is None:
            raise PortError(f"message {work.sequence} failed when it first came")
        return caller.reply

    def update(self, work: Work) -> dict[int, State]:
        """Begin a message: close the tags of its caller's last incarnation and those that it frees, then open its new
        ones. Returns the opened states by tag."""
        self._begin(work)
        for tag in work.frees:
            self._close((work.origin, tag), ended=True)
        opened = {}
        for opening in work.opens:
            key = work.origin, opening.tag
            self._close(key, ended=False)
            self._names[key] = opening.name or str(opening.tag)
            self._open[key] = opened[opening.tag] = self._opened(opening)
        return opened

    def find(self, work: Work, tag: int, least: int) -> State | None:
        """Return the state of a row's tag, now the most recently used. None if the row is stale: the tag is unknown,
        has fewer than `least` tokens, or the caller means another incarnation of this process."""
        key = work.origin, tag
        state = self._open.get(key)
        if state is None or state.num_tokens < least:
            return None
        if work.epoch not in (0, self.epoch) and all(opening.tag != tag for opening in work.opens):
            return None
        self._open.move_to_end(key)
        return state

    def evict(self, works: Sequence[Work], work: Work, where: Callable[[State], bool]) -> bool:
        """Make room for `work`, one of `works` that are answered together: forget a tag, or return False if none may
        go.

        Candidates satisfy `where` and are not rows of `works`. They belong to a silent caller, to the caller's own
        group, or to a group that holds more tokens. Silent callers go first, then the group that holds most tokens; in
        it, the least recently used tag."""
        now = self._now()
        rows = {(each.origin, tag) for each in works for tag in each.tags.tolist()}
        silent = {each.origin for each in self._callers.values() if now - each.began > SILENT}
        own = group_of(work.origin)
        held: dict[int, int] = {own: 0}
        first: dict[tuple[bool, int], tuple[int, int]] = {}
        for key, state in self._open.items():
            if where(state):
                group = group_of(key[0])
                held[group] = held.get(group, 0) + state.num_tokens
                if key not in rows:
                    first.setdefault((key[0] in silent, group), key)
        fair = [each for each in first if each[0] or each[1] == own or held[each[1]] > held[own]]
        if fair:
            self._close(first[max(fair, key=lambda each: (each[0], held[each[1]]))], ended=False)
        return bool(fair)

    def clear(self) -> None:
        """Forget all callers and close their tags."""
        for caller in self._callers.values():
            self._close_all(caller.origin)
        self._callers.clear()

    def _begin(self, work: Work) -> None:
        now, who = self._now(), self._who(work.origin)
        for each, caller in list(self._callers.items()):
            if each == who:
                gone = caller.origin != work.origin
            else:
                gone = now - caller.began > self._lease
            if gone:
                del self._callers[each]
                self._close_all(caller.origin)
        self._callers[who] = _LastMessage(work.origin, work.sequence, None, now)

    def _close_all(self, origin: int) -> None:
        left = [key for key in self._open if key[0] == origin]
        log.info("closing %d tags of a caller that has gone or restarted", len(left))
        for key in left:
            self._close(key, ended=True)

    def _close(self, key: tuple[int, int], *, ended: bool) -> None:
        self._names.pop(key, None)
        state = self._open.pop(key, None)
        if state is not None:
            self._closed(state, ended)

    def _who(self, origin: int) -> int:
        return 0 if self._exclusive else origin >> INCARNATION_BITS
