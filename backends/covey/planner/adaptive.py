"""The default policy, `adaptive`: it maximises expected tokens per second, learnt from all rounds at all batch sizes.

    value(k) = tokens(k) / seconds(k)          (covey.planner.expectations)

Five rules turn these values into a choice:

start    Without measured curves, the first rounds are plain. Exploration's starting balance and the cost of offers
         are counted in the time of such a round. Rounds with drafts do not show it, since they leave other data in the
         CPU's caches.
keep     While drafting is off, each round adds the time that it lost without drafts. Drafting begins when the sum
         reaches the drafters' catch-up time. A large gain is taken soon, a small one later, noise never; there is no
         threshold. For example, rounds without drafts take 10 ms, and a depth promises 5 % more tokens per second.
         Each round adds 0.5 ms to the debt. If catch-up takes 3.6 ms, drafting begins after 8 rounds; with a gain of
         40 % it would begin after one.
explore  A bank pays for exploration: a fixed share of all time goes in, and each exploring round's expected loss goes
         out. The policy explores the depth whose optimistic value is best, if that beats the depth in use. Doubt grows
         while a depth is not measured, so a drafter that was switched off is always probed again.
         A full bank also pays, at five times the price, for the depth played longest ago, in case doubt is wrong.
         If such rounds take longer than expected, for example because drafters catch up, the bank pays the rest
         afterwards.
         Exploring from drafting to none, or back, lasts a few rounds. For example, rounds of 10 ms add 0.05 ms each
         (SHARE). A round of 15 ms at a depth expected to be a tenth slower loses 1.5 ms, so one round in 30 may
         explore.
prefill  A pass with prompt tokens is long at any depth, so its tokens per second say little. The best depth has
         the largest tokens - speed * seconds, where speed is the usual tokens per second. That is at least the speed
         of plain rounds of all rows that will decode soon, because drafts for a few keep the others' prompts waiting.
         The policy still learns from its parts: drafting takes its usual time, and passes filled by prompts show early
         what large ones cost.
forget   Every estimate forgets (see each), so it follows drift.
"""

from __future__ import annotations

import math

from covey.bandits.policy import Outcome, Reason, Situation
from covey.planner.expectations import Expectations, Expected, crosses
from covey.planner.switching import SwitchCosts
from covey_client.costs.table import CostTable

PLAIN = 4  # plain rounds at the start
SHARE = 0.005  # share of all time that may be lost by exploring
START = 5.0  # rounds' time in the bank at the start
FULL = 3.0  # rounds' time in the bank from which it is spent even if no depth is doubted
PREMIUM = 5.0  # the price of that, in expected losses
MOST_OWED = 8.0  # rounds' time that an exploration can cost beyond its price: it may be slow for another reason
NEW = 0.1  # weight of a new round in the observed slowness
ACROSS = 4  # rounds of exploring from drafting to none, or back
DEVIATIONS = 2.0  # an optimistic value is this many deviations above its estimate
DRIFT = 1e-6  # variance that a depth gains in each round in which it is not played
STALE, LEAST = 1.3, 0.003  # a depth is explored only if its doubt exceeds STALE times that of the one in use + LEAST


class Adaptive:
    """Implements `LengthPolicy`."""

    verified: int | None = None
    width: int | None = None
    listens = True
    teaches = True
    patient = True

    def __init__(
        self, max_depth: int, max_rows: int, switch_costs: SwitchCosts, costs: CostTable | None = None
    ) -> None:
        self._switch_costs = switch_costs
        self.expectations = Expectations(max_depth, max_rows, costs)
        self._current = 0
        self._started = False
        self._plain = PLAIN if costs is None else 0  # rounds that are still to be plain
        self._debt = 0.0
        self._bank = 0.0
        self._played = [0] * (max_depth + 1)  # the round in which each depth was last played
        self._round = 0
        self._exploring, self._more = 0, 0  # a depth, and for how many more rounds
        # The last rounds, the seconds that were expected of them, and whether they explored drafting after none.
        self._recent: list[tuple[Situation, float, bool]] = []
        self._paid = self._most_owed = 0.0  # catch-up that is paid for the present exploration; what may still be owed
        self._slowness = 1.0  # observed over expected seconds, of late
        self._asked: tuple[Expected, int, int] | None = None  # the inputs of the last choice
        self.reason = Reason("")

    def choose(self, situation: Situation) -> int:
        expected = self.expectations.of(situation)
        depth = self._chosen(situation, expected)
        begins = self.reason.word == "explore" and depth > 0 and self._current == 0
        if self.expectations.measured:  # before, expected seconds only compare depths
            self._recent = [*self._recent[1 - ACROSS :], (situation, expected.seconds[depth], begins)]
        return depth

    def _chosen(self, situation: Situation, expected: Expected) -> int:
        predicted = expected.latencies if self.expectations.measured else []
        if self._more:
            # With prefill as well: exploration must not stop and begin again, nor last longer than was paid for.
            self._more -= 1
            if self._exploring <= situation.ceiling:
                self.reason = Reason("explore", predicted)
                return self._exploring
        if situation.prefill and self._started:
            self.reason = Reason("with prefill", predicted)
            return self._with_prefill(situation, expected)
        if self._plain:
            self._plain -= 1
            self.reason = Reason("start", predicted)
            return 0
        if situation.ceiling == 0:
            self._current, self._debt, self._more = 0, 0.0, 0
            self.reason = Reason(situation.why_plain, predicted)
            return 0
        asked = expected, situation.ceiling, situation.previous
        if asked == self._asked and self.reason.word == "best":
            return self._current  # nothing new was learnt
        self._asked = asked
        best = max(range(situation.ceiling + 1), key=expected.values.__getitem__)
        catch_up = self._switch(situation) if situation.previous == 0 else 0.0
        current = self._settled(situation, expected, best, catch_up)
        probe, price = self._probe(situation, expected, current, catch_up)
        self._bank = min(self._bank, max(2 * FULL * expected.seconds[current], 2 * price))
        if probe != current and price <= self._bank:
            self._bank -= price
            self._exploring, self._more = probe, _stay(current, probe) - 1
            self._paid, self._most_owed = catch_up, MOST_OWED * expected.seconds[current]
            self.reason = Reason("explore", predicted)
            return probe
        self.reason = Reason("best" if current == best else "keep", predicted)
        return current

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        self._round += 1
        self._played[depth] = self._round
        self._bank += SHARE * outcome.seconds
        if not self._started:
            self._started = True
            self._bank += START * (outcome.seconds - outcome.catch_up_seconds)
        self._settle_up(situation, outcome, whole=True)
        self.expectations.update(situation, depth, outcome)

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        self._settle_up(situation, outcome, whole=False)
        self.expectations.overhear(situation, depth, outcome)

    def _settle_up(self, situation: Situation, outcome: Outcome, *, whole: bool) -> None:
        """Charge the bank for the excess time of a round that explored drafting. Other rounds show how slow the device
        is, if they are `whole`: they took the chosen drafts and no prompts."""
        asked = next((each for each in self._recent if each[0] is situation), None)
        if asked is None or situation.prefill:
            return
        _, seconds, explores = asked
        if explores:
            over = max(0.0, outcome.seconds - seconds * self._slowness)
            paid, owed = min(over, self._paid), min(max(0.0, over - self._paid), self._most_owed)
            self._paid, self._most_owed, self._bank = self._paid - paid, self._most_owed - owed, self._bank - owed
        elif whole:
            self._slowness += NEW * (min(4.0, outcome.seconds / seconds) - self._slowness)

    def _with_prefill(self, situation: Situation, expected: Expected) -> int:
        """Return the best depth of a round with prefill; the depth in use in plain rounds stays."""
        usual = min(self._current, situation.ceiling)
        speed = max(expected.values[usual], self.expectations.speed(situation.rows + situation.joining))
        gains = []
        for depth, more in enumerate(self.expectations.more(situation)[: situation.ceiling + 1]):
            time = expected.seconds[depth] + more
            if depth > 0 and usual == 0 and situation.previous == 0:  # otherwise catch-up is due in any case
                time += self._switch(situation)
            gains.append(expected.tokens[depth] - speed * time)
        return max(range(len(gains)), key=gains.__getitem__)

    def _settled(self, situation: Situation, expected: Expected, best: int, catch_up: float) -> int:
        """Return the depth in use, changed once keeping it has cost as much as changing it will."""
        if self._current > situation.ceiling or not self._started:
            self._current, self._debt = best, 0.0
        if best == self._current:
            self._debt *= 0.9
            return best
        lost = expected.values[best] / expected.values[self._current] - 1.0
        self._debt += lost * expected.seconds[self._current]
        if self._debt >= (catch_up if self._current == 0 else 0.0):
            self._current, self._debt = best, 0.0
        return self._current

    def _probe(self, situation: Situation, expected: Expected, current: int, catch_up: float) -> tuple[int, float]:
        """Return the depth most worth trying, and the time that trying it takes from the bank."""
        values, seconds, depths = expected.values, expected.seconds, range(situation.ceiling + 1)
        probe, most, premium = current, values[current], 1.0
        deviations = [
            math.sqrt(
                expected.doubt[depth] ** 2
                + expected.variances[depth] / seconds[depth] ** 2
                + DRIFT * (self._round - self._played[depth])
            )
            for depth in depths
        ]
        stale = STALE * deviations[current] + LEAST
        for depth in depths:
            if depth != current and deviations[depth] > stale:
                could = values[depth] * math.exp(min(2.0, DEVIATIONS * deviations[depth]))
                if could > most:
                    probe, most = depth, could
        if probe == current and self._bank >= FULL * seconds[current]:
            probe, premium = min(depths, key=self._played.__getitem__), PREMIUM
        lost = _stay(current, probe) * seconds[probe] * max(LEAST, 1.0 - values[probe] / values[current])
        if probe > 0 and current == 0:
            lost += catch_up
        return probe, premium * lost

    def _switch(self, situation: Situation) -> float:
        of, together = self._switch_costs.of, self.expectations.costs.side_by_side
        return together([of(name)(lag, rows) for name, rows, lag in situation.lags()])


def _stay(current: int, probe: int) -> int:
    """Return for how many rounds a depth is explored."""
    return ACROSS if crosses(current, probe) else 1
