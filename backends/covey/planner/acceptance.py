"""Estimates how many drafted tokens are accepted, position by position, for one kind of rows at any batch size.

    a_i = P(draft i accepted | drafts before it were)        counted with forgetting, per trial and per idle round
    E(k) = 1 + sum over i <= k of a_1 ... a_i                 tokens of one row in a round of depth k

Every draft that the drafter was asked for is a trial, even if it was not proposed or not verified. So E(k) counts
requested drafts, proposed or not. `filled` is the share of the requested drafts that the target verifies.

A position with few trials takes the rate of the one before it as its prior. So depth 5 has an estimate if depth 3 is
well known.

Forgetting alone would take thousands of rounds to follow a sudden change. So two CUSUM tests, over all positions
together, ask whether trials speak for better or for worse odds of acceptance:

    S = max(0, S + log(P(trials | odds times e^+-CHANGE) / P(trials | a)))       a change where S reaches ALARM

After an alarm, the counts from before S was last 0 are forgotten at every position. If trials are independent, a false
alarm comes less than once in e^ALARM rounds on average, for any number of trials per round. A change less than half as
large is left to forgetting.

Requests differ, and each leans to more or fewer accepted drafts than others (`covey.bandits.leaning`). E(k) of a batch
follows the leanings of its requests. Trials are compared with what was expected of their requests, so another request
is seldom taken for a change. Suspicion that the drafter became better adds enough doubt to make the policy try it.

A recent change may soon be over. While nothing is tried, counts fade to half within as many rounds as the change has
lasted. So a drafter that looked useless for one request is tried again for the next, and then ever more rarely.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from covey.bandits.leaning import Leaning, shifted

LIFETIME = 3000.0  # trials after which an old one counts 1/e
IDLE = 5000.0  # rounds without any trial after which counts of that age or older count half
YOUNG = 50.0  # the age in rounds of a change when it is noticed
PRIOR = 4.0  # trials that the position before is worth
FIRST = 0.7  # rate of the first position before anything is seen
CHANGE = 1.5  # the change of log odds to detect: about 0.8 to 0.5, or 0.3 to 0.65
ALARM = 11.0  # false once in 60,000 rounds at most; a step from 0.8 to 0.3 is noticed after some 20 rounds of one row


class _Suspicion:
    """The suspicion that odds have changed by a factor of e^`shift`, and the trials since it arose."""

    __slots__ = ("accepted", "evidence", "more", "shift", "tried")

    def __init__(self, shift: float, max_depth: int) -> None:
        self.shift = shift
        self.more = math.expm1(shift)
        self.drop(max_depth)

    def drop(self, max_depth: int) -> None:
        self.evidence = 0.0
        self.tried = [0.0] * max_depth
        self.accepted = [0.0] * max_depth

    def weigh(self, trials: Sequence[tuple[int, int, int, float]]) -> bool:
        """Add trials: position, rows tried, accepted, expected rate. Returns whether this raises the alarm."""
        shift, more, evidence = self.shift, self.more, self.evidence
        for _, looked, right, rate in trials:
            evidence += shift * right - looked * math.log1p(rate * more)
        if evidence > 0.0:
            self.evidence = evidence
            for index, looked, right, _ in trials:
                self.tried[index] += looked
                self.accepted[index] += right
        elif self.evidence:
            self.drop(len(self.tried))
        return evidence >= ALARM

    def fade(self, keep: float) -> None:
        """Multiply all counts by `keep`."""
        self.evidence *= keep
        self.tried = [count * keep for count in self.tried]
        self.accepted = [count * keep for count in self.accepted]


def _suspicions(max_depth: int) -> tuple[_Suspicion, _Suspicion]:
    """Return the suspicions that the drafter is better than it was, and that it is worse."""
    return _Suspicion(CHANGE, max_depth), _Suspicion(-CHANGE, max_depth)


class Acceptance:
    """Owns the counts of one kind."""

    def __init__(self, max_depth: int, first: float = FIRST) -> None:
        """`first` is the rate of the first position before anything is seen."""
        self._first = first
        self._tried = [0.0] * max_depth
        self._accepted = [0.0] * max_depth
        self._asked = self._verified = 0.0
        self._suspicions = _suspicions(max_depth)
        self._idle = 0
        self._age = IDLE  # rounds since the last change, or IDLE
        self._rates: list[float] | None = None
        self._tokens = [1.0]
        self._doubt = [0.0]
        self._current = False

    def update(
        self, tried: Sequence[int], accepted: Sequence[int], rows: Sequence[tuple[Leaning, int, int]] = ()
    ) -> None:
        """Count rows that were tried, and accepted, by position; deeper positions may be left out. `rows` has
        the same counts for each row, with its request's leaning. The leaning predicts the row's rates, and then learns
        from the counts."""
        self._settle()
        places = enumerate(zip(tried, accepted, self._expected_of(rows, tried)))
        trials = [(index, looked, right, rate) for index, (looked, right, rate) in places if looked]
        rates = self.rates()
        for leaning, looked, right in rows:
            leaning.add(rates, looked, right)
        for index, looked, right, _ in trials:
            keep = max(0.0, 1.0 - looked / LIFETIME)
            self._tried[index] = self._tried[index] * keep + looked
            self._accepted[index] = self._accepted[index] * keep + right
        for suspicion in self._suspicions:
            if suspicion.weigh(trials):
                self._tried, self._accepted = suspicion.tried, suspicion.accepted
                self._suspicions = _suspicions(len(self._tried))
                self._age = YOUNG
                break
        self._age = min(IDLE, self._age + 1.0)
        self._changed()

    def together(self, shifts: Sequence[float], rows: int) -> list[float]:
        """Return the expected tokens of `rows` rows, for each depth from 0. `shifts` has each row's leaning; empty:
        none. Does not mutate."""
        tokens, _ = self.expected()
        if not any(shifts):
            return [rows * each for each in tokens]
        total = [float(rows)] + [0.0] * (len(tokens) - 1)
        for shift in shifts:
            path = 1.0
            for depth, rate in enumerate(shifted(self.rates(), shift), 1):
                path *= rate
                total[depth] += path
        return list(itertools.accumulate(total))

    def fill(self, asked: int, verified: int) -> None:
        """Count the draft tokens that were asked for and verified."""
        keep = max(0.0, 1.0 - asked / LIFETIME)
        self._asked = self._asked * keep + asked
        self._verified = self._verified * keep + verified

    def filled(self, usual: float = 1.0) -> float:
        """Return the share of the requested draft tokens that are verified; `usual` before anything is known."""
        return (self._verified + PRIOR * usual) / (self._asked + PRIOR)

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
        """Return a_i by position. Does not mutate the counts."""
        if self._rates is None:
            self._rates, before = [], self._first
            for tried, accepted in zip(self._tried, self._accepted):
                before = (accepted + PRIOR * before) / (tried + PRIOR)
                self._rates.append(before)
        return self._rates

    def _expected_of(self, rows: Sequence[tuple[Leaning, int, int]], tried: Sequence[int]) -> list[float]:
        """Return the rates that were expected at each position, on average over the rows that were tried there."""
        rates = self.rates()
        if not any(leaning.shift for leaning, _, _ in rows):
            return rates
        total = [0.0] * len(rates)
        for leaning, looked, _ in rows:
            for index, rate in enumerate(shifted(rates[:looked], leaning.shift)):
                total[index] += rate
        return [each / looked if looked else rate for each, looked, rate in zip(total, tried, rates)]

    def _compute(self) -> None:
        tokens, doubt = [1.0], [0.0]
        path, reach, variance = 1.0, [], []
        hope = self._suspicions[0].evidence / ALARM
        for rate, tried in zip(self.rates(), self._tried):
            path *= rate
            reach.append(path)
            known = rate * (1.0 - rate) / (tried + PRIOR) / max(rate, 1e-3) ** 2
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
            self._tried = [count * keep for count in self._tried]
            self._accepted = [count * keep for count in self._accepted]
            self._asked, self._verified = self._asked * keep, self._verified * keep
            for suspicion in self._suspicions:
                suspicion.fade(keep)
            self._idle = 0
            self._changed()

    def _changed(self) -> None:
        self._rates, self._current = None, False
