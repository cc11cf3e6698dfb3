"""The ledger of a target or drafter: who asks it, which tags they have open, and what each one's last message was
answered.

A caller whose answer was lost sends the message again, under the same number. Its work was done and is not done twice:
it gets the answer that is stored, or hears again that the work failed.

An origin names a caller and which incarnation of it speaks. The callers of one other server are a group: their first
bits are alike (`covey.star.callers`), and they share the room that one caller would have.

    |<- 31 bits: the caller; 15 of them its group ->|<- 32 bits: its incarnation ->|

Tags are kept by origin, so that several callers share one drafter and each knows its own tags alone. A new incarnation
knows nothing of what the one before it opened and would never free it, so its first message closes that. A caller that
never comes back is forgotten when others call after its lease has run out. A caller that is alone keeps its tags
however long it is silent. Where room is short, the group that holds most forgets first, and callers that are silent
before all others: nobody who uses a tag loses it to one whose group holds more. A message that is older than its
caller's last is refused: what it tells of is past.

Messages are answered one at a time, or those of several callers at once. Knows neither tensors nor Triton.
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
GROUP_BITS = 15  # of the caller's
UNNUMBERED = 0  # a message that nobody sends again
MOST_TAGS = 2048  # a drafter keeps so many; those it forgets are opened again with all their tokens
SILENT = 5.0  # seconds without a message after which a caller's tags are the first to go when room is needed
LEASE = 600.0  # seconds without a message after which a caller is taken for gone


def new_origin(caller: str) -> int:
    """Return the origin of a new incarnation of `caller`: what calls itself so is always one and the same caller."""
    who = int.from_bytes(hashlib.sha256(caller.encode()).digest()[:4], "big") >> (32 - CALLER_BITS)
    return who << INCARNATION_BITS | secrets.randbits(INCARNATION_BITS)


def group_of(origin: int) -> int:
    return group_of_sender(origin >> INCARNATION_BITS)


def group_of_sender(who: int) -> int:
    """Return the group of a caller, whichever its incarnation."""
    return who >> (CALLER_BITS - GROUP_BITS)


class Text(Protocol):
    """The protocol of the state that a ledger keeps for a tag."""

    @property
    def num_tokens(self) -> int:
        """Return how many of the tag's tokens the state holds."""
        ...


State = TypeVar("State", bound=Text)
Work = TypeVar("Work", TargetWork, DraftWork)
Reply = TypeVar("Reply", TargetReply, DraftReply)


@dataclass(slots=True, eq=False)
class _LastMessage(Generic[Reply]):
    """The last message of one caller: from which incarnation it came, its number, its answer, and when it was begun."""

    origin: int
    sequence: int
    reply: Reply | None
    began: float


class Ledger(Generic[State, Reply]):
    """Owns the open tags' states, the least recently used first, and the callers' last messages and their answers."""

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
        """`opened` makes the state of a tag. `closed` hears of every state that is let go, and whether its request has
        ended; if not, the tag was opened anew, or forgotten to make room. An `exclusive` answerer has one caller at a
        time, which counts on every tag that it opened: none is forgotten, and a message of another origin closes all.
        With an `epoch` of 0 one is drawn."""
        self.epoch = epoch or secrets.randbelow(1 << 31) + 1
        self._opened = opened
        self._closed = closed
        self._exclusive = exclusive
        self._most = most
        self._lease = lease
        self._now = now
        self._open: OrderedDict[tuple[int, int], State] = OrderedDict()
        self._names: dict[tuple[int, int], str] = {}  # of their requests
        self._callers: dict[int, _LastMessage[Reply]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def states(self) -> Iterable[State]:
        """Return the state of every open tag. Does not mutate."""
        return self._open.values()

    def tags(self) -> set[tuple[int, int]]:
        """Return the origin and tag of all that is open. Does not mutate."""
        return set(self._open)

    def get(self, work: Work, tag: int) -> State | None:
        """Return the state that is open under the tag of the message's caller, stale or not. Does not mutate."""
        return self._open.get((work.origin, tag))

    def once(self, work: Work, answer: Callable[[Work], Reply]) -> Reply:
        """Return the answer that the message had when it came before, else `answer(work)`, which must call `update`
        before it changes anything. Raises PortError for a message that was begun before and never answered."""
        (reply,) = self.together([work], lambda works: [answer(each) for each in works])
        return reply

    def together(self, works: list[Work], answer: Callable[[list[Work]], list[Reply]]) -> list[Reply]:
        """Answer messages of several callers at once, each as `once` does."""
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
        """Return what logs call the requests of these messages."""
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
        """Begin a message: close what its caller's incarnation before left and what it frees, and open what it opens.
        Returns what was opened, by tag."""
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
        """Return the state behind a row, which is now the most recently used. None for a row that is stale: unknown,
        with fewer than `least` tokens, or of a caller that means another incarnation of this answerer."""
        key = work.origin, tag
        state = self._open.get(key)
        if state is None or state.num_tokens < least:
            return None
        if work.epoch not in (0, self.epoch) and all(opening.tag != tag for opening in work.opens):
            return None
        self._open.move_to_end(key)
        return state

    def evict(self, works: Sequence[Work], work: Work, where: Callable[[State], bool]) -> bool:
        """Make room for one of the messages that are answered at once: forget the least recently used tag, of those
        whose state is `where` and that are no rows of them, of a silent caller, else of the group that holds most
        tokens, if that is its own or holds more. False when there is none."""
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
        log.info("a caller is gone or has started anew: %d tags of it are closed", len(left))
        for key in left:
            self._close(key, ended=True)

    def _close(self, key: tuple[int, int], *, ended: bool) -> None:
        self._names.pop(key, None)
        state = self._open.pop(key, None)
        if state is not None:
            self._closed(state, ended)

    def _who(self, origin: int) -> int:
        return 0 if self._exclusive else origin >> INCARNATION_BITS
