"""Estimates how many drafted tokens are accepted, position by position, for one drafter at any batch size.

    a_i = P(draft i accepted | drafts before it were)        counted with forgetting, per trial and per idle round
    E(k) = 1 + sum over i <= k of a_1 ... a_i                 tokens of one row in a round of depth k

What a drafter was asked for and that was not verified is among the trials, be it not proposed or not selected: E(k) is
of what is in the pass, and how much that is of what was asked for, `filled` says.

A position that was seldom reached leans on the one before it, so depth 5 is not a blank when depth 3 is known well.

Forgetting alone would take thousands of rounds to follow a sudden change. So each trial is also asked whether it speaks
for better or worse odds of acceptance at every position: a CUSUM test each, over all positions together

    S = max(0, S + log(P(trials | odds times e^+-CHANGE) / P(trials | a)))       a change where S reaches ALARM

and what was counted before S last was 0 is then forgotten at every position: where the drafter is seldom looked at,
what is seen at first positions is the better witness. Where trials are independent, S gets there without a change less
than once in e^ALARM rounds on average, however many trials a round has; a change by less than half as much is left to
forgetting. Requests that differ among themselves are changes, too: with few rows they are followed one by one (some
five alarms in a thousand rounds of one row whose requests' rates are spread as Beta(3, 2), two with four rows, none
with 32), which is what a choice for these rows wants. While it is
suspected that the drafter is better than it was, so much doubt is added that it is worth a try.

A change that is young may soon be over. What is known fades, while nothing is tried, to half within as many rounds as
it has held: a drafter that one request made look useless is tried again for the next, and ever more seldom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MEMORY = 3000.0  # trials after which an old one counts 1/e
IDLE = 5000.0  # rounds without any trial after which what is known counts half, where it is as old as that
YOUNG = 50.0  # rounds that a change has lasted when it is noticed
LEAN = 4.0  # trials that the position before is worth
FIRST = 0.7  # the first position before anything is seen
CHANGE = 1.5  # the change of log odds looked for: about 0.8 to 0.5, or 0.3 to 0.65
ALARM = 11.0  # once in 60,000 rounds at most: a step from 0.8 to 0.3 is noticed after some 20 rounds of one row


class _Suspicion:
    """The suspicion that odds have changed by a factor of e^`shift`, and the trials since it arose."""

    __slots__ = ("accepted", "evidence", "more", "offered", "shift")

    def __init__(self, shift: float, max_depth: int) -> None:
        self.shift = shift
        self.more = math.expm1(shift)
        self.drop(max_depth)

    def drop(self, max_depth: int) -> None:
        self.evidence = 0.0
        self.offered = [0.0] * max_depth
        self.accepted = [0.0] * max_depth

    def weigh(self, trials: Sequence[tuple[int, int, int, float]]) -> bool:
        """Weigh trials: position, rows looked at, accepted, expected rate. Returns whether it is certain."""
        shift, more, evidence = self.shift, self.more, self.evidence
        for _, looked, right, rate in trials:
            evidence += shift * right - looked * math.log1p(rate * more)
        if evidence > 0.0:
            self.evidence = evidence
            for index, looked, right, _ in trials:
                self.offered[index] += looked
                self.accepted[index] += right
        elif self.evidence:
            self.drop(len(self.offered))
        return evidence >= ALARM

    def fade(self, keep: float) -> None:
        """Weigh what was counted so far by the factor `keep`."""
        self.evidence *= keep
        self.offered = [count * keep for count in self.offered]
        self.accepted = [count * keep for count in self.accepted]


def _suspicions(max_depth: int) -> tuple[_Suspicion, _Suspicion]:
    """Return the suspicions that the drafter is better than it was, and that it is worse."""
    return _Suspicion(CHANGE, max_depth), _Suspicion(-CHANGE, max_depth)


class Acceptance:
    """Owns the counts of one drafter."""

    def __init__(self, max_depth: int) -> None:
        self._offered = [0.0] * max_depth
        self._accepted = [0.0] * max_depth
        self._asked = self._verified = 0.0
        self._suspicions = _suspicions(max_depth)
        self._idle = 0
        self._age = IDLE  # rounds since the last change, or IDLE
        self._rates: list[float] | None = None
        self._tokens = [1.0]
        self._doubt = [0.0]
        self._current = False

    def update(self, offered: Sequence[int], accepted: Sequence[int]) -> None:
        """Count rows that were looked at, and accepted, by position; there may be fewer positions than the deepest."""
        self._settle()
        places = enumerate(zip(offered, accepted, self.rates()))
        trials = [(index, looked, right, rate) for index, (looked, right, rate) in places if looked]
        for index, looked, right, _ in trials:
            keep = max(0.0, 1.0 - looked / MEMORY)
            self._offered[index] = self._offered[index] * keep + looked
            self._accepted[index] = self._accepted[index] * keep + right
        for suspicion in self._suspicions:
            if suspicion.weigh(trials):
                self._offered, self._accepted = suspicion.offered, suspicion.accepted
                self._suspicions = _suspicions(len(self._offered))
                self._age = YOUNG
                break
        self._age = min(IDLE, self._age + 1.0)
        self._changed()

    def fill(self, asked: int, verified: int) -> None:
        """Note how many draft tokens were asked for and verified."""
        keep = max(0.0, 1.0 - asked / MEMORY)
        self._asked = self._asked * keep + asked
        self._verified = self._verified * keep + verified

    def filled(self, usual: float = 1.0) -> float:
        """Return the share of the draft tokens asked for that are verified; `usual` as long as nothing is known."""
        return (self._verified + LEAN * usual) / (self._asked + LEAN)

    def idle(self) -> None:
        """Count a round in which this drafter could have drafted and did not."""
        self._idle += 1
        if self._idle % 64 == 0:
            self._settle()

    def expected(self) -> tuple[list[float], list[float]]:
        """Return tokens per row and their relative deviation for each depth from 0. Does not mutate."""
        if not self._current:
            self._compute()
        return self._tokens, self._doubt

    def rates(self) -> list[float]:
        """Return a_i by position. Does not mutate what is known."""
        if self._rates is None:
            self._rates, lean = [], FIRST
            for offered, accepted in zip(self._offered, self._accepted):
                lean = (accepted + LEAN * lean) / (offered + LEAN)
                self._rates.append(lean)
        return self._rates

    def _compute(self) -> None:
        tokens, doubt = [1.0], [0.0]
        path, reach, variance = 1.0, [], []
        hope = self._suspicions[0].evidence / ALARM
        for rate, offered in zip(self.rates(), self._offered):
            path *= rate
            reach.append(path)
            known = rate * (1.0 - rate) / (offered + LEAN) / max(rate, 1e-3) ** 2
            variance.append(known + (hope * (1.0 - rate)) ** 2)
            tokens.append(tokens[-1] + path)
            # dE/da_j = (sum over i >= j of a_1 ... a_i) / a_j
            tail, total = 0.0, 0.0
            for index in range(len(reach) - 1, -1, -1):
                tail += reach[index]
                total += tail * tail * variance[index]
            doubt.append(total**0.5 / tokens[-1])
        self._tokens, self._doubt, self._current = tokens, doubt, True

    def _settle(self) -> None:
        if self._idle:
            keep = self._age / (self._age + self._idle)
            self._age = min(IDLE, self._age + self._idle)
            self._offered = [count * keep for count in self._offered]
            self._accepted = [count * keep for count in self._accepted]
            self._asked, self._verified = self._asked * keep, self._verified * keep
            for suspicion in self._suspicions:
                suspicion.fade(keep)
            self._idle = 0
            self._changed()

    def _changed(self) -> None:
        self._rates, self._current = None, False
