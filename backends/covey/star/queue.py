"""Whose calls a shared drafter serves next, and which of them together.

    late        a call whose draft would come too late, though it were one token, is told so at once
    overdue     who waits for longer than the bound, and much longer than all that waits takes, goes first
    fair        else whoever is behind his share of the drafter's time, by weight
    slack       among those, whoever has least time left beyond what the draft takes

The rows of others join the chosen call's pass in the same order, while they fit and nobody is late for it. One
sender's calls are served as they came: each tells of what follows the one before. Knows no threads and no drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from covey.star.calls import Call
from covey.star.speed import Speed

OVERDUE = 3.0  # times what one call of each that waits takes
CREDIT = 0.2  # seconds of the drafter's time that one who asks less than he may can save up
QUANTUM = 0.010  # seconds of the drafter's time by which whoever is behind goes before who has less slack


@dataclass(frozen=True, slots=True)
class Rules:
    rows: int = 64  # of calls that are served together
    bound: float = 0.1  # seconds that a call waits before it goes first


class DraftQueue:
    """Owns the calls that wait, and what share of the drafter's time each sender has had."""

    def __init__(self, rules: Rules, weights: Mapping[str, float] | None = None) -> None:
        self._rules = rules
        self._weights = weights or {}
        self._waiting: dict[int, list[Call]] = {}  # by sender, as they came
        self._had: dict[int, float] = {}  # seconds of the drafter, by weight
        self._level = 0.0  # what those who are served now had had before

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def calls(self) -> list[Call]:
        """Those that wait. Does not mutate."""
        return [call for calls in self._waiting.values() for call in calls]

    def put(self, call: Call) -> None:
        if call.who not in self._waiting:
            self._had[call.who] = max(self._had.get(call.who, 0.0), self._level - CREDIT)
        self._waiting.setdefault(call.who, []).append(call)

    def late(self, now: float, speed: Speed) -> list[Call]:
        """Removes and returns the calls that even a draft of one token would be late for."""
        found = []
        for calls in list(self._waiting.values()):
            for call in list(calls):
                if now + speed.seconds(call.rows, 1) > call.due:
                    found.append(call)
                    self._remove(call)
        return found

    def take(self, now: float, speed: Speed, *, shared: bool = True) -> list[Call]:
        """Removes and returns the calls to serve now, one of a sender at most, their depths cut to what is in time.
        Empty when nobody waits. Without `shared` it is one call."""
        heads = [calls[0] for calls in self._waiting.values()]
        bound = max(self._rules.bound, OVERDUE * sum(speed.seconds(call.rows, call.depth) for call in heads))
        least = min((self._had.get(who, 0.0) for who in self._waiting), default=0.0)
        order = sorted(self._waiting, key=lambda who: self._rank(who, now, speed, bound, least))
        taken: list[Call] = []
        rows = depth = 0
        for who in order:
            call = self._waiting[who][0]
            joint = rows + call.rows, max(depth, call.depth)
            if taken:
                if call.work.reading is not None or joint[0] > self._rules.rows:
                    continue
                if now + speed.seconds(*joint) > min(each.due for each in (*taken, call)):
                    continue
            taken.append(call)
            rows, depth = joint
            if call.work.reading is not None or not shared:
                break
        for call in taken:
            self._remove(call)
        return [self._cut(call, now, speed, rows) for call in taken]

    def served(self, calls: list[Call], seconds: float) -> None:
        """So long did they take together; each pays for its rows."""
        rows = sum(call.rows for call in calls)
        before = {call.who: self._had.get(call.who, self._level) for call in calls}
        self._level = max(self._level, min(before.values()))
        for call in calls:
            share = call.rows / rows if rows else 1 / len(calls)
            self._had[call.who] = before[call.who] + seconds * share / self._weights.get(call.caller, 1.0)

    def forget(self, who: int) -> None:
        """A sender is gone."""
        if who not in self._waiting:
            self._had.pop(who, None)

    def _rank(self, who: int, now: float, speed: Speed, bound: float, least: float) -> tuple[float, float, float]:
        calls = self._waiting[who]
        if now - calls[0].arrived > bound:
            return 0, calls[0].arrived, 0
        behind = int((self._had.get(who, 0.0) - least) / QUANTUM)
        return 1, behind, min(call.due - now - speed.seconds(call.rows, call.depth) for call in calls)

    def _remove(self, call: Call) -> None:
        calls = self._waiting[call.who]
        calls.remove(call)
        if not calls:
            del self._waiting[call.who]

    @staticmethod
    def _cut(call: Call, now: float, speed: Speed, rows: int) -> Call:
        """The same call, no deeper than its sender can wait for."""
        most = speed.depth(rows, call.due - now)
        if call.depth > most:
            call.work = replace(call.work, depth=np.minimum(call.work.depth, most))
        return call
