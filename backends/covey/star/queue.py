"""The queue of a shared drafter: whose calls it serves next, and which of them together.

    late        a call whose draft would come too late, though it were one token, is told so at once
    overdue     who waits for longer than the bound, and much longer than all that waits takes, goes first; of several
                groups that do, the one that was served least lately
    fair        else the group of callers (`covey.wire.ledger`) that will have had least of the drafter's time after its
                call, by weight: who asks for little is not behind all that ask for more than there is
    in turns    among the senders of one group
    slack       among those, whoever has least time left beyond what the draft takes, until its sender waits no more

The rows of others join the chosen call's pass in the same order, while they fit and nobody is late for it. One
sender's calls are served as they came: each tells of what follows the one before. However many beams and levels a call
asks for, it holds the drafter not much longer than the bound where there are others. Knows no threads and no drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from covey.star.calls import Call
from covey.star.speed import Speed
from covey.wire.ledger import group_of_sender

OVERDUE = 3.0  # times what one call of each that waits takes, or times the bound for one call
CREDIT = 0.2  # seconds of the drafter's time that one who asks less than he may can save up
USUAL = 16  # levels of a draft that are not too many, however slow the drafter seems
QUANTUM = 0.010  # seconds of the drafter's time by which whoever is behind goes before who has less slack


@dataclass(frozen=True, slots=True)
class QueueLimits:
    rows: int = 64  # beams of calls that are served together
    bound: float = 0.1  # seconds that a call waits before it goes first


class DraftQueue:
    """Owns the calls that wait, and what share of the drafter's time each sender has had."""

    def __init__(self, limits: QueueLimits, weights: Mapping[str, float] | None = None) -> None:
        self._limits = limits
        self._weights = weights or {}
        self._waiting: dict[int, list[Call]] = {}  # by sender, as they came
        self._turns: dict[int, int] = {}  # by sender: when it was served last
        self._turn = 0
        self._had: dict[int, float] = {}  # by group: seconds of the drafter, by weight
        self._level = 0.0  # what those who are served now had had before

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def calls(self) -> list[Call]:
        """Return the calls that wait. Does not mutate."""
        return [call for calls in self._waiting.values() for call in calls]

    def put(self, call: Call) -> None:
        group = group_of_sender(call.who)
        if group not in self._groups():
            self._had[group] = max(self._had.get(group, 0.0), self._level - CREDIT)
        self._turns.setdefault(call.who, self._turn)
        self._waiting.setdefault(call.who, []).append(call)

    def count(self, who: int) -> int:
        """Return how many calls of a sender wait. Does not mutate."""
        return len(self._waiting.get(who, ()))

    def drop(self, calls: list[Call]) -> None:
        """Remove those of the calls that wait here."""
        for call in calls:
            if call in self._waiting.get(call.who, ()):
                self._remove(call)

    def late(self, now: float, speed: Speed) -> list[Call]:
        """Remove and return the calls that even a draft of one token would be late for."""
        found = []
        for calls in list(self._waiting.values()):
            for call in list(calls):
                if now + speed.seconds(call.beams, 1) > call.due:
                    found.append(call)
                    self._remove(call)
        return found

    def take(self, now: float, speed: Speed, *, shared: bool = True) -> list[Call]:
        """Remove and return the calls to serve now, one of a sender at most, their depths cut to what is in time.
        Empty when nobody waits. Without `shared` it is one call."""
        heads = [calls[0] for calls in self._waiting.values()]
        bound = max(self._limits.bound, OVERDUE * sum(speed.seconds(call.beams, call.depth) for call in heads))
        least = min((self._had.get(each, 0.0) for each in self._groups()), default=0.0)
        last: dict[int, int] = {}
        for who, turn in self._turns.items():
            last[group_of_sender(who)] = max(turn, last.get(group_of_sender(who), turn))
        order = sorted(self._waiting, key=lambda who: self._rank(who, now, speed, bound, least, last))
        taken: list[Call] = []
        beams = depth = 0
        for who in order:
            call = self._waiting[who][0]
            joint = beams + call.beams, max(depth, call.depth)
            if taken:
                if call.work.judging is not None or joint[0] > self._limits.rows:
                    continue
                if now + speed.seconds(*joint) > min(each.due for each in (*taken, call)):
                    continue
            taken.append(call)
            beams, depth = joint
            if call.work.judging is not None or not shared:
                break
        for call in taken:
            self._remove(call)
        return [self._cut(call, now, speed, beams) for call in taken]

    def served(self, calls: list[Call], seconds: float) -> None:
        """Note how long calls took together; each pays for its rows."""
        beams = sum(call.beams for call in calls)
        groups = {call: group_of_sender(call.who) for call in calls}
        self._level = max(self._level, min(self._had.get(each, self._level) for each in groups.values()))
        self._turn += 1
        for call, group in groups.items():
            share = call.beams / beams if beams else 1 / len(calls)
            had = self._had.get(group, self._level)
            self._had[group] = had + seconds * share / self._weights.get(call.caller, 1.0)
            self._turns[call.who] = self._turn

    def forget(self, who: int) -> None:
        """Forget a sender that is gone and has no call here."""
        self._turns.pop(who, None)
        group = group_of_sender(who)
        if all(group_of_sender(each) != group for each in self._turns):
            self._had.pop(group, None)

    def _groups(self) -> set[int]:
        return {group_of_sender(who) for who in self._waiting}

    def _rank(
        self, who: int, now: float, speed: Speed, bound: float, least: float, last: Mapping[int, int]
    ) -> tuple[float, ...]:
        calls, group, turn = self._waiting[who], group_of_sender(who), self._turns.get(who, 0)
        call = calls[0]
        if now - call.arrived > bound:
            return 0, last.get(group, 0), call.arrived
        first = sum(group_of_sender(each) == group and self._turns.get(each, 0) < turn for each in self._waiting)
        takes = call.depth * speed.step(call.beams) / self._weights.get(call.caller, 1.0)
        behind = int((self._had.get(group, 0.0) + takes - least) / QUANTUM)
        return 1, behind, first, min(call.due - now - speed.seconds(call.beams, call.depth) for call in calls)

    def _remove(self, call: Call) -> None:
        calls = self._waiting[call.who]
        calls.remove(call)
        if not calls:
            del self._waiting[call.who]

    def _cut(self, call: Call, now: float, speed: Speed, beams: int) -> Call:
        """Return the call, made no deeper than its sender can wait, nor, beyond what is usual, than the others can."""
        most = speed.depth(beams, call.due - now)
        if len(self._had) > 1:
            most = min(most, max(USUAL, speed.depth(beams, OVERDUE * self._limits.bound)))
        if call.depth > most:
            call.work = replace(call.work, depth=np.minimum(call.work.depth, most))
        return call
