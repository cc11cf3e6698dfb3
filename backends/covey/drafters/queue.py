"""The queue of a shared drafter: it picks the calls to serve next, and those that share one pass.

    late        A call too late even for a draft of one token is answered at once.
    overdue     A call that has waited longer than the bound, and much longer than all waiting calls take, goes first.
                Among several such groups, the one that was served longest ago goes first.
    fair        Otherwise the group of callers (`covey.wire.ledger`) goes first that will have had least drafter time
                after its call, by weight. A light caller is not starved by heavy ones.
    in turns    The senders of one group take turns.
    slack       Among the rest, the sender goes first that can wait least beyond the time of its draft.

Other rows join the chosen call's pass in the same order, while they fit and no call becomes late. One sender's calls
are served in order, because each continues the one before. While others wait, a call of many beams and levels holds the
drafter not much longer than the bound. The queue knows no threads and no drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from covey.drafters.calls import Call
from covey.drafters.speed import Speed
from covey.wire.ledger import group_of_sender

OVERDUE = 3.0  # times what one call of each waiting sender takes, or times the bound for one call
CREDIT = 0.2  # seconds of the drafter's time that a light caller can save up
USUAL = 16  # levels that a draft may always have, however slow the drafter
QUANTUM = 0.010  # seconds of the drafter's time: smaller differences between groups leave the choice to turns and slack


@dataclass(frozen=True, slots=True)
class QueueLimits:
    rows: int = 64  # most beams of one pass
    bound: float = 0.1  # seconds that a call waits before it goes first


class DraftQueue:
    """Owns the waiting calls and each group's share of the drafter's time."""

    def __init__(self, limits: QueueLimits, weights: Mapping[str, float] | None = None) -> None:
        self._limits = limits
        self._weights = weights or {}
        self._waiting: dict[int, list[Call]] = {}  # by sender, in order of arrival
        self._turns: dict[int, int] = {}  # by sender: the turn in which it was last served
        self._turn = 0
        self._had: dict[int, float] = {}  # by group: seconds of the drafter, divided by weight
        self._level = 0.0  # the lowest earlier share among the groups now served

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def calls(self) -> list[Call]:
        """Return the waiting calls. Does not mutate."""
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
        """Remove those of these calls that still wait."""
        for call in calls:
            if call in self._waiting.get(call.who, ()):
                self._remove(call)

    def late(self, now: float, speed: Speed) -> list[Call]:
        """Remove and return the calls that are too late even for a draft of one token."""
        found = []
        for calls in list(self._waiting.values()):
            for call in list(calls):
                if now + speed.seconds(call.beams, 1) > call.due:
                    found.append(call)
                    self._remove(call)
        return found

    def take(self, now: float, speed: Speed, *, shared: bool = True) -> list[Call]:
        """Remove and return the calls to serve now, at most one per sender, each cut to the depth that is in time.
        Without `shared`, at most one call. Empty if no call waits."""
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
                if joint[0] > self._limits.rows:
                    continue
                if now + speed.seconds(*joint) > min(each.due for each in (*taken, call)):
                    continue
            taken.append(call)
            beams, depth = joint
            if not shared:
                break
        for call in taken:
            self._remove(call)
        return [self._cut(call, now, speed, beams) for call in taken]

    def served(self, calls: list[Call], seconds: float) -> None:
        """Charge each call for its rows' part of the joint time."""
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
        """Forget a sender that is gone and has no waiting call."""
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
        """Return the call, no deeper than its sender can wait. With other groups present, depths beyond USUAL must also
        fit their bound."""
        most = speed.depth(beams, call.due - now)
        if len(self._had) > 1:
            most = min(most, max(USUAL, speed.depth(beams, OVERDUE * self._limits.bound)))
        if call.depth > most:
            call.work = replace(call.work, depth=np.minimum(call.work.depth, most))
        return call
