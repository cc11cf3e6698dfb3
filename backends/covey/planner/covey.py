"""The default policy, `covey`: it maximises expected tokens per second, learnt from all rounds at all batch sizes.

    value(k) = tokens(k) / seconds(k)          (covey.planner.expectations)

Four rules make a choice of these values:

keep     A depth stays until the time lost by that, summed over rounds, has reached what the change takes: what first
         rounds at another depth take beyond their prediction (covey.planner.change_cost) and, to switch drafting on,
         the drafters' catch-up. A large gain is acted upon soon, a small one later, noise never; there is no threshold
         to fall off. For example, rounds take 10 ms at the depth in use and 12 ms at one that promises 5 % more tokens
         per second. Each round adds 0.5 ms to the debt. If the change takes 0.3 rounds, 3.6 ms, it is made after 8
         rounds; a gain of 40 % would be acted upon after one.
explore  Exploration lives on a bank: a fixed share of all time goes in, the time an exploring round is expected to lose
         goes out. The depth explored is the one whose value could be best of all, if its doubt allows it to be better
         than the one in use. Doubt grows where nothing is measured: a drafter switched off is probed again, for ever.
         Plain decoding that nothing like it was seen of is held for doubtful whatever the curves say, and its price is
         less by what it may save: it is what everything else is weighed against.
         What is left over goes, at five times the price, to the depth longest unplayed: doubt may be wrong too.
         Where a first round at another depth takes longer, it teaches no costs and exploring goes on for a second one;
         across the line between drafting and none it always does, for a few. Where the costs are known, and what is to
         be learnt is how many drafts are accepted, one round is enough. For example, rounds of 10 ms bring the bank
         0.05 ms each (SHARE). A round of 15 ms at a depth expected to be a tenth slower loses 1.5 ms: one in 30.
prefill  A pass with prompt tokens in it is long whatever the depth, so its own tokens per second say little. There the
         depth is best that gains most over spending its time at the usual speed: max of tokens - speed * seconds, less
         what leaving the usual depth, and coming back, takes. Its parts are learnt from: drafting takes what it takes
         elsewhere, and passes filled by prompts show early what large ones cost.
forget   Every estimate forgets (see each), so drift is followed.
"""

from __future__ import annotations

import math

from covey.bandits.length import Outcome, Reason, Situation
from covey.planner.change_cost import ChangeCost
from covey.planner.expectations import Expectations, Expected
from covey.planner.switching import SwitchCosts
from covey_client.costs.table import CostTable

SHARE = 0.005  # share of all time that may be lost by exploring
START = 5.0  # rounds' time in the bank at the start
FULL = 3.0  # rounds' time in the bank from which on it is spent even where nothing is doubted
PREMIUM = 5.0  # the price of that, in expected losses
ACROSS, AMONG = 4, 2  # rounds of exploring from drafting to none, or back; from depth to depth where that is dear
DEVIATIONS = 2.0  # a value could be as good as so many deviations above its estimate
DRIFT = 1e-6  # variance that a depth's correction gains in each round in which the depth is not played
SURE = 0.05  # relative deviation of a depth's seconds below which they are known
BLIND = 0.3  # ... of what plain decoding takes where nothing like it was seen
HORIZON = 100  # rounds over which finding out may save time: a batch seldom stays as it is for longer
STALE, LEAST = 1.3, 0.003  # a depth known about as well as the one in use is not explored: no more is to be learnt


def _improvement(ratio: float, deviation: float) -> float:
    """Return by how much a value exceeds another on average, with losses counted as nothing: `ratio` is the expected
    quotient of the two, whose logarithm is normal."""
    spread = math.log(ratio) / deviation

    def below(at: float) -> float:
        return 0.5 * math.erfc(-at / math.sqrt(2.0))

    return ratio * math.exp(deviation**2 / 2) * below(spread + deviation) - below(spread)


class Covey:
    """Implements `LengthPolicy`."""

    verified: int | None = None
    width: int | None = None
    patient = True

    def __init__(
        self, max_depth: int, max_rows: int, switch_costs: SwitchCosts, costs: CostTable | None = None
    ) -> None:
        self._switch_costs = switch_costs
        self.expectations = Expectations(max_depth, max_rows, costs)
        self._change_cost = ChangeCost()
        self._current = 0
        self._started = False
        self._debt = 0.0
        self._bank = 0.0
        self._played = [0] * (max_depth + 1)  # the round in which each depth was last played
        self._round = 0
        self._last_depth = 0  # the deepest draft of the last round that it was told of, whoever asked for it
        self._exploring, self._more = 0, 0  # a depth, and for how many more rounds
        self._asked: tuple[Expected, int, int] | None = None  # what the last choice rests on
        self.reason = Reason("")

    def prepare(self, situation: Situation) -> None:
        self.expectations.of(situation)

    def choose(self, situation: Situation) -> int:
        expected = self.expectations.of(situation)
        predicted = expected.latencies if self.expectations.measured else []
        if self._more:
            # Beside prefill too: what is explored must not stop and begin again, and not outlast its price.
            self._more -= 1
            if self._exploring <= situation.ceiling:
                self.reason = Reason("explore", predicted)
                return self._exploring
        if situation.prefill and self._started:
            self.reason = Reason("beside prefill", predicted)
            return self._beside_prefill(situation, expected)
        if situation.ceiling == 0:
            self._current, self._debt, self._more = 0, 0.0, 0
            self.reason = Reason(situation.why_plain, predicted)
            return 0
        asked = expected, situation.ceiling, situation.previous
        if asked == self._asked and self.reason.word == "best":
            return self._current  # nothing was learnt since
        self._asked = asked
        best = max(range(situation.ceiling + 1), key=expected.values.__getitem__)
        restart = self._switch(situation) if situation.previous == 0 else 0.0
        current = self._settled(situation, expected, best, restart)
        probe, price = self._probe(situation, expected, current, restart)
        self._bank = min(self._bank, max(2 * FULL * expected.seconds[current], 2 * price))
        if probe != current and price <= self._bank:
            self._bank -= price
            self._exploring, self._more = probe, self._stay(expected, current, probe) - 1
            self.reason = Reason("explore", predicted)
            return probe
        self.reason = Reason("best" if current == best else "keep", predicted)
        return current

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        self._round += 1
        self._last_depth = depth
        self._played[depth] = self._round
        self._bank += SHARE * outcome.seconds
        if not self._started:
            self._started = True
            self._bank += START * (outcome.seconds - outcome.catch_up_seconds)
        whole = outcome.verified + outcome.missing == max(1, situation.rows) + situation.asked(depth)
        ratio = None
        if whole and self.expectations.measured:
            expected = self.expectations.of(situation).seconds[depth]
            ratio = (outcome.seconds - outcome.catch_up_seconds) / expected
        usual = self._change_cost.seen(situation.previous, depth, ratio)
        self.expectations.update(situation, depth, outcome, usual=usual)

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        usual = not self._change_cost.dear(self._last_depth, depth)
        self._last_depth = depth
        self.expectations.overhear(situation, depth, outcome, usual=usual)

    def _beside_prefill(self, situation: Situation, expected: Expected) -> int:
        """Return the best depth of a round with prefill; the depth in use in plain rounds stays. Another one is a
        detour, which must be worth leaving and coming back."""
        usual = min(self._current, situation.ceiling)
        speed, seconds, price = expected.values[usual], expected.seconds, self._change_cost.price
        gains = []
        for depth, more in enumerate(self.expectations.more(situation)[: situation.ceiling + 1]):
            time = seconds[depth] + more
            time += price(situation.previous, depth) * seconds[depth] + price(depth, usual) * seconds[usual]
            if depth > 0 and usual == 0 and situation.previous == 0:  # else it is owed whatever is done now
                time += self._switch(situation)
            gains.append(expected.tokens[depth] - speed * time)
        return max(range(len(gains)), key=gains.__getitem__)

    def _settled(self, situation: Situation, expected: Expected, best: int, restart: float) -> int:
        """Return the depth in use, changed once keeping it has cost as much as changing it will."""
        if self._current > situation.ceiling or not self._started:
            self._current, self._debt = best, 0.0
        if best == self._current:
            self._debt *= 0.9
            return best
        seconds = expected.seconds
        lost = expected.values[best] / expected.values[self._current] - 1.0
        self._debt += lost * seconds[self._current]
        price = self._change_cost.price(self._current, best) * seconds[best] + (restart if self._current == 0 else 0.0)
        if self._debt >= price:
            self._current, self._debt = best, 0.0
        return self._current

    def _probe(self, situation: Situation, expected: Expected, current: int, restart: float) -> tuple[int, float]:
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
        blind = current > 0 and not self.expectations.costs.rests(max(1, situation.rows))
        if blind:
            deviations[0] = max(BLIND, deviations[0])
        stale = STALE * deviations[current] + LEAST
        for depth in depths:
            if depth != current and deviations[depth] > stale:
                could = values[depth] * math.exp(min(2.0, DEVIATIONS * deviations[depth]))
                if could > most:
                    probe, most = depth, could
        if probe == current and self._bank >= FULL * seconds[current]:
            probe, premium = min(depths, key=self._played.__getitem__), PREMIUM
        stay = self._stay(expected, current, probe)
        lost = stay * seconds[probe] * max(LEAST, 1.0 - values[probe] / values[current])
        price = self._change_cost.price
        lost += price(current, probe) * seconds[probe] + price(probe, current) * seconds[current]
        if probe > 0 and current == 0:
            lost += restart
        if blind and probe == 0:
            lost -= HORIZON * seconds[current] * _improvement(values[0] / values[current], deviations[0])
        return probe, max(0.0, premium * lost)

    def _stay(self, expected: Expected, current: int, probe: int) -> int:
        """Return for how many rounds a depth is explored."""
        if (probe == 0) != (current == 0):
            return ACROSS  # its first round teaches no costs, and a drafter may take less than it did
        if probe > 0 and expected.variances[probe] < (SURE * expected.seconds[probe]) ** 2:
            return 1
        return AMONG if self._change_cost.dear(current, probe) else 1

    def _switch(self, situation: Situation) -> float:
        of, together = self._switch_costs.of, self.expectations.costs.side_by_side
        return float(together([of(name)(lag, rows) for name, rows, lag in situation.lags()]))
