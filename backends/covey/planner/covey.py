"""`covey`, the default: expected tokens per second, from what all rounds at all batch sizes have taught.

    value(k) = tokens(k) / seconds(k)
    tokens   = sum over drafters of rows * E(k), and one of each row that does not draft
                                                              (covey.planner.acceptance)
    seconds  = T(n, k) * residual(n, k) + [k > 0] upkeep * tokens(k)
                                                              (covey.planner.costs, .residuals, .upkeep)

Four rules make a choice of these values:

keep     A depth stays until the time lost by that, summed over rounds, has reached what the change takes: what first
         rounds at another depth take beyond their prediction (covey.planner.changes) and, to switch drafting on, the
         drafters' catch-up. A large gain is acted upon soon, a small one later, noise never; there is no threshold to
         fall off.
explore  Exploration lives on a bank: a fixed share of all time goes in, the time an exploring round is expected to lose
         goes out. The depth explored is the one whose value could be best of all, if its doubt allows it to be better
         than the one in use. Doubt grows where nothing is measured: a drafter switched off is probed again, for ever.
         What is left over goes, at five times the price, to the depth longest unplayed: doubt may be wrong too.
         A first round at another depth teaches no costs, so exploring goes on for a second one, and for a few across
         the line between drafting and none.
prefill  A pass with prompt tokens in it is long whatever the depth, so its own tokens per second say little. There the
         depth is best that gains most over spending its time at the usual speed: max of tokens - speed * seconds, less
         what leaving the usual depth, and coming back, takes. Its parts are learnt from: drafting takes what it takes
         elsewhere, and passes filled by prompts show early what large ones cost.
forget   Every estimate forgets (see each), so drift is followed.
"""

from __future__ import annotations

import math

from covey.bandits.length import Outcome, Reason, Situation
from covey.planner.acceptance import Acceptance
from covey.planner.changes import Changes
from covey.planner.cost_table import CostTable
from covey.planner.costs import Mix, Passes, RoundCosts
from covey.planner.residuals import Residuals
from covey.planner.switching import SwitchCost
from covey.planner.upkeep import Upkeep
from covey.types import JsonDict

SHARE = 0.005  # of all time may be lost by exploring
START = 5.0  # rounds' time in the bank at the start
FULL = 3.0  # rounds' time in the bank from which on it is spent even where nothing is doubted
PREMIUM = 5.0  # the price of that, in expected losses
ACROSS, AMONG = 4, 2  # rounds of exploring from drafting to none, or back; and from depth to depth
DEVIATIONS = 2.0  # a value could be as good as so many deviations above its estimate
DRIFT = 1e-6  # variance that a depth's correction gains in each round in which the depth is not played
STALE, LEAST = 1.3, 0.003  # a depth known about as well as the one in use is not explored: no more is to be learnt
CLEAR = 0.03  # of a plain round's tokens that another depth beside prefill must gain


class Covey:
    """Implements `LengthPolicy`."""

    def __init__(self, max_depth: int, max_rows: int, switch_cost: SwitchCost, table: CostTable | None = None) -> None:
        self._max_depth = max_depth
        self._max_rows = max_rows
        self._switch_cost = switch_cost
        self._costs = RoundCosts(max_depth, max_rows, table)
        self._residuals = Residuals(max_depth, max_rows)
        self._acceptance: dict[str, Acceptance] = {}
        self._upkeep = Upkeep()
        self._current = 0
        self._started = False
        self._debt = 0.0
        self._bank = 0.0
        self._seconds: list[float] = []  # of the last choice, by depth, before residuals
        self._corrected: list[float] = []  # and after
        self._played = [0] * (max_depth + 1)  # the round in which each depth was last played
        self._round = 0
        self._exploring, self._more = 0, 0  # a depth, and for how many more rounds
        self._changes = Changes()
        self.reason = Reason("")

    def choose(self, situation: Situation) -> int:
        depths = range(situation.ceiling + 1)
        rows = max(1, situation.rows)
        mix, tokens, doubt = self._tokens(situation)
        passes = self._passes(situation)
        mean, variance = self._costs.predict(rows, mix, max(1, situation.drafting), passes)
        self._seconds = mean.tolist()
        upkeep = self._upkeep.per_token
        seconds = (mean * self._residuals.factors(rows)).tolist()
        self._corrected = list(seconds)
        seconds[1:] = [time + upkeep * count for time, count in zip(seconds[1:], tokens[1:])]
        variances = variance.tolist()
        values = [tokens[depth] / seconds[depth] for depth in range(self._max_depth + 1)]
        predicted = [1.0 / value for value in values] if self._costs.known else []
        if self._more:
            # Beside prefill too: what is explored must not stop and begin again, and not outlast its price.
            self._more -= 1
            if self._exploring <= situation.ceiling:
                self.reason = Reason("explore", predicted)
                return self._exploring
        if situation.prefill and self._started:
            return self._beside_prefill(situation, passes, tokens, values, seconds, predicted)
        if situation.ceiling == 0:
            self._current, self._debt, self._more = 0, 0.0, 0
            self.reason = Reason("no drafter", predicted)
            return 0
        best = max(depths, key=values.__getitem__)
        restart = self._switch(situation) if situation.previous == 0 else 0.0
        current = self._settled(situation, best, values, seconds, restart)
        probe, price = self._probe(current, depths, values, seconds, variances, doubt, restart)
        self._bank = min(self._bank, max(2 * FULL * seconds[current], 2 * price))
        if probe != current and price <= self._bank:
            self._bank -= price
            self._exploring, self._more = probe, self._stay(current, probe) - 1
            self.reason = Reason("explore", predicted)
            return probe
        self.reason = Reason("best" if current == best else "keep", predicted)
        return current

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        rows = max(1, situation.rows)
        self._round += 1
        self._played[depth] = self._round
        self._bank += SHARE * outcome.seconds
        if not self._started:
            self._started = True
            self._bank += START * outcome.seconds
        mix = self._mix(situation)
        catch_up = outcome.catch_up_seconds
        usual = self._changes.seen(situation.previous, depth)
        whole = outcome.verified + outcome.missing == rows + situation.asked(depth)
        if whole and self._corrected:
            self._changes.learn(situation.previous, depth, (outcome.seconds - catch_up) / self._corrected[depth])
        if usual:
            self._costs.observe(
                rows,
                depth,
                mix,
                drafting=max(1, situation.drafting),
                verified=outcome.verified,
                verify=outcome.verify_seconds,
                draft=outcome.draft_seconds - catch_up,
                overhead=max(0.0, outcome.seconds - outcome.draft_seconds - outcome.verify_seconds),
            )
        self._judge(situation, depth, outcome)
        if usual and whole and self._seconds:
            self._residuals.update(rows, depth, (outcome.seconds - catch_up) / self._seconds[depth])

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Not the residuals, which are of whole rounds, and nothing about changes."""
        if depth == situation.previous:
            self._costs.observe(
                max(1, situation.rows),
                depth,
                self._mix(situation),
                drafting=max(1, situation.drafting),
                verified=outcome.verified,
                prefill=situation.prefill,
                verify=outcome.verify_seconds,
                draft=outcome.draft_seconds - outcome.catch_up_seconds,
                overhead=None,
            )
        self._judge(situation, depth, outcome)

    def _judge(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """The drafters, by their drafts and by what they took to read."""
        for name, _ in situation.shares:
            trials = outcome.trials.get(name)
            if trials is not None:
                self._accepted(name).update(trials.offered, trials.accepted)
                self._accepted(name).fill(trials.asked, trials.proposed)
            elif situation.ceiling:
                self._accepted(name).idle()
        if depth > 0 and situation.previous > 0:
            self._upkeep.update(outcome.catch_up_seconds, outcome.tokens)

    def keep(self, rows: int) -> int | None:  # noqa: ARG002  # every draft it asked for is worth verifying
        return None

    def switch_lag(self, situation: Situation) -> int:
        return situation.mean_lag

    def _beside_prefill(
        self,
        situation: Situation,
        passes: Passes,
        tokens: list[float],
        values: list[float],
        seconds: list[float],
        predicted: list[float],
    ) -> int:
        """The best depth of a round with prefill; what is in use in plain rounds stays. Another one is a detour, which
        must be worth leaving and coming back."""
        rows = max(1, situation.rows)
        usual = min(self._current, situation.ceiling)
        more = self._costs.more(rows, situation.prefill, passes).tolist()
        price = self._changes.price
        gains = []
        for depth in range(situation.ceiling + 1):
            time = seconds[depth] + more[depth]
            time += price(situation.previous, depth) * seconds[depth] + price(depth, usual) * seconds[usual]
            if depth > 0 and situation.previous == 0:
                time += self._switch(situation)
            gains.append(tokens[depth] - values[usual] * time)
        best = max(range(len(gains)), key=gains.__getitem__)
        clear = gains[best] - gains[usual] > CLEAR * values[usual] * seconds[usual]
        self.reason = Reason("beside prefill", predicted)
        return best if clear else usual

    def _settled(
        self, situation: Situation, best: int, values: list[float], seconds: list[float], restart: float
    ) -> int:
        """The depth in use, changed when keeping it has cost as much as changing it will."""
        if self._current > situation.ceiling or not self._started:
            self._current, self._debt = best, 0.0
        if best == self._current:
            self._debt *= 0.9
            return best
        lost = values[best] / values[self._current] - 1.0
        self._debt += lost * seconds[self._current]
        price = self._changes.price(self._current, best) * seconds[best] + (restart if self._current == 0 else 0.0)
        if self._debt >= price:
            self._current, self._debt = best, 0.0
        return self._current

    def _probe(
        self,
        current: int,
        depths: range,
        values: list[float],
        seconds: list[float],
        variances: list[float],
        doubt: list[float],
        restart: float,
    ) -> tuple[int, float]:
        """The depth most worth trying, and the time that trying it takes from the bank."""
        probe, most, premium = current, values[current], 1.0
        deviations = [
            math.sqrt(
                doubt[depth] ** 2 + variances[depth] / seconds[depth] ** 2 + DRIFT * (self._round - self._played[depth])
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
        lost = self._stay(current, probe) * seconds[probe] * max(LEAST, 1.0 - values[probe] / values[current])
        price = self._changes.price
        lost += price(current, probe) * seconds[probe] + price(probe, current) * seconds[current]
        if current == 0:
            lost += restart
        return probe, premium * lost

    @staticmethod
    def _stay(current: int, probe: int) -> int:
        """Rounds that exploring a depth lasts."""
        return ACROSS if (probe == 0) != (current == 0) else AMONG

    def _switch(self, situation: Situation) -> float:
        return self._switch_cost(self.switch_lag(situation), situation.drafting)

    def _mix(self, situation: Situation) -> Mix:
        return tuple(sorted(name for name, _ in situation.shares))

    def _passes(self, situation: Situation) -> Passes:
        """Tokens to be verified, by depth: of what a drafter is asked for, only what it usually proposes."""
        shares = situation.shares
        filled = 1.0
        if shares:
            filled = sum(rows * self._accepted(name).filled for name, rows in shares) / situation.drafting
        rows = max(1, situation.rows)
        if filled == 1.0 and not situation.drafts:
            drafting = max(1, situation.drafting)
            return tuple(range(rows, rows + drafting * self._max_depth + 1, drafting))
        return tuple(rows + round(filled * situation.asked(depth)) for depth in range(self._max_depth + 1))

    def _tokens(self, situation: Situation) -> tuple[Mix, list[float], list[float]]:
        """The drafters in use; tokens of a round and their relative deviation, by depth."""
        shares = situation.shares or (("", situation.rows),)
        plain = situation.rows - situation.drafting
        if len(shares) == 1 and not plain:
            per_row, doubt = self._accepted(shares[0][0]).expected()
            rows = shares[0][1]
            return (shares[0][0],), [rows * tokens for tokens in per_row], doubt
        tokens = [float(plain)] * (self._max_depth + 1)
        squares = [0.0] * (self._max_depth + 1)
        for name, rows in shares:
            for depth, (each, deviation) in enumerate(zip(*self._accepted(name).expected())):
                tokens[depth] += rows * each
                squares[depth] += (rows * each * deviation) ** 2
        return self._mix(situation), tokens, [square**0.5 / total for square, total in zip(squares, tokens)]

    def _accepted(self, drafter: str) -> Acceptance:
        found = self._acceptance.get(drafter)
        if found is None:
            found = self._acceptance[drafter] = Acceptance(self._max_depth)
        return found

    def state(self) -> JsonDict:
        return {
            "max_depth": self._max_depth,
            "max_rows": self._max_rows,
            "costs": self._costs.state(),
            "residuals": self._residuals.state(),
            "acceptance": {name: counts.state() for name, counts in self._acceptance.items()},
            "upkeep": self._upkeep.state(),
            "switching": self._switch_cost.state(),
        }

    def restore(self, state: JsonDict) -> None:
        try:
            if (state["max_depth"], state["max_rows"]) != (self._max_depth, self._max_rows):
                raise ValueError("learnt with other max_depth or max_running")
            costs = RoundCosts(self._max_depth, self._max_rows)
            costs.restore(state["costs"])
            residuals = Residuals(self._max_depth, self._max_rows)
            residuals.restore(state["residuals"])
            acceptance = {str(name): Acceptance(self._max_depth) for name in state["acceptance"]}
            for name, counts in acceptance.items():
                counts.restore(state["acceptance"][name])
            upkeep = Upkeep()
            upkeep.restore(state["upkeep"])
            self._switch_cost.restore(state["switching"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        self._costs, self._residuals, self._acceptance, self._upkeep = costs, residuals, acceptance, upkeep
