"""Predicts from a cost table how much load a target takes: the rows that decode at once, how long a token then takes,
and how many requests a second that is.

With k rows, each with a draft of d tokens, a round takes T = draft(k, d) + pass(k, k (d + 1)) + overhead(k) and brings
each row the tokens that `Star` counts; a prompt makes a pass longer by what its tokens take there. So k rows finish

    m(k) = 1 / (output * T / (k * tokens) + longer(k, prompt))        requests a second, d being the best for k

Lengths are log-normal: `longer` is the mean over prompts, of which the long ones cost more than their share, and a row
that is found running is rather a long one than a short: it holds its prompt and output * exp(spread ** 2) / 2 tokens.

Requests share rounds evenly. Where they come independently of one another, how many are there then depends on their
mean lengths alone: p(k) is in proportion to the product of rate / m(i) over i = 1 .. k, with m(rows) beyond `rows`,
where the others wait. A drafter elsewhere that serves s targets makes a round max(s S, S + Z), as `Star` has it.

Knows neither prefix reuse nor preemption, no catch-up of a drafter that had nothing to do, and no change of the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable
from covey_client.star.model import Star

QUANTILE = 0.95  # of the time in which the objectives are to hold
HALVINGS = 40  # that find a rate
PROMPTS = tuple((2 * part + 1) / 16 for part in range(8))  # the quantiles that stand for all prompts


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """Seconds to the first token and per token; infinite without a goal."""

    ttft: float = math.inf
    tpot: float = math.inf

    def __post_init__(self) -> None:
        if not (self.ttft > 0 and self.tpot > 0):
            raise ValueError("objectives must be positive")


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A target at one rate of requests. Times in seconds."""

    rate: float  # requests a second
    rows: float  # that decode at once, on average
    busy: float  # rate over the most that it finishes
    tpot: float  # on average
    ttft: float
    slow_tpot: float  # what the state brings that is not exceeded in QUANTILE of the time
    slow_ttft: float

    def meets(self, objective: LatencyGoal) -> bool:
        return self.slow_tpot <= objective.tpot and self.slow_ttft <= objective.ttft


@dataclass(frozen=True)
class TargetLoad:
    """A target and the requests that it is sent. `drafter` "": it decodes plainly. `sharing`: how many targets one
    drafter elsewhere serves, a round's messages taking `transfer` seconds; 0: it drafts beside the target."""

    costs: CostTable
    prompt: float  # mean tokens
    output: float
    max_running: int
    kv_tokens: int = 0  # that its memory holds; 0: enough
    spread: float = 0.8  # standard deviation of the logarithm of lengths
    acceptance: float = 0.0
    drafter: str = ""
    depth: int = 5
    sharing: int = 0
    transfer: float = 0.0

    def __post_init__(self) -> None:
        if min(self.prompt, self.output, self.max_running, self.depth) < 1:
            raise ValueError("prompt, output, max-running and depth must be at least 1")
        if not 0 <= self.spread <= 3 or self.kv_tokens < 0:
            raise ValueError("spread must be from 0 to 3, kv-tokens at least 0")
        if self.drafter and self.drafter not in self.costs.draft:
            raise ValueError(f"drafter {self.drafter!r}: the table has {', '.join(self.costs.draft) or 'none'}")
        if not (0 <= self.acceptance <= 1 and 0 <= self.transfer < math.inf and self.sharing >= 0):
            raise ValueError("acceptance must be from 0 to 1, transfer and sharing at least 0")

    @cached_property
    def rows(self) -> int:
        """Return the most rows that run at once."""
        held = self.prompt + self.output * math.exp(self.spread**2) / 2
        return min(self.max_running, max(1, int(self.kv_tokens / held))) if self.kv_tokens else self.max_running

    @cached_property
    def _prompts(self) -> list[float]:
        """Return lengths of prompts, each for an equal share of them."""
        lengths = [math.exp(self.spread * NormalDist().inv_cdf(quantile)) for quantile in PROMPTS]
        return [self.prompt * length * len(lengths) / sum(lengths) for length in lengths]

    @cached_property
    def _verify(self) -> Surface:
        return Surface(self.costs.verify)

    @cached_property
    def _draft(self) -> Surface:
        return Surface(self.costs.draft[self.drafter])

    @cached_property
    def _overhead(self) -> Surface:
        return Surface([(1, rows, seconds) for rows, seconds in self.costs.overhead] or [(1, 1, 0.0)])

    def star(self, rows: int, depth: int) -> Star:
        """Return one kind of target, for the formulas of a shared drafter."""
        return Star(
            step=self._draft(rows, depth) / depth,
            verify=self._verify(rows, rows * (depth + 1)) + self._overhead(1, rows),
            transfer=self.transfer if self.sharing else 0.0,
            acceptance=self.acceptance,
            depth=depth,
            plain=self._plain(rows),
        )

    @cached_property
    def rounds(self) -> list[tuple[int, float, float]]:
        """Return the rounds by rows, from 1: the best depth, seconds of a round, and tokens that it brings each row."""
        return [self._best(rows) for rows in range(1, self.rows + 1)]

    @cached_property
    def finished(self) -> list[float]:
        """Return m(k), from k = 1."""
        found = []
        for rows, (depth, seconds, tokens) in enumerate(self.rounds, 1):
            longer = self._longer(rows, depth, self._prompts)
            found.append(1.0 / (self.output * seconds / (rows * tokens) + longer))
        return found

    def at(self, rate: float) -> LoadPoint | None:
        """Return the point at this rate, None if the target does not keep up."""
        busy = rate / self.finished[-1]
        if busy >= 1:
            return None
        weights, weight = [1.0], 1.0
        for most in self.finished:
            weight *= rate / most
            weights.append(weight)
        beyond = weight * busy / (1 - busy)  # of the states in which requests wait
        whole = sum(weights) + beyond
        running = (sum(k * weight for k, weight in enumerate(weights)) + self.rows * beyond) / whole
        waiting = beyond / (1 - busy) / whole
        state = self._quantile([weight / whole for weight in weights], busy)
        return LoadPoint(
            rate=rate,
            rows=running,
            busy=busy,
            tpot=running / rate / self.output,
            ttft=waiting / rate + self._first(max(1, round(running)), self._prompts),
            slow_tpot=self._token(min(state, self.rows), rate),
            slow_ttft=max(0, state - self.rows) / self.finished[-1]
            + self._first(min(state, self.rows), self._prompts[-1:]),
        )

    def most(self, objective: LatencyGoal) -> LoadPoint | None:
        """Return the largest rate with which the goals hold; None if one request alone misses them."""
        low, high = 0.0, self.finished[-1]
        found = None
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            point = self.at(middle) if middle else None
            if point is not None and point.meets(objective):
                low, found = middle, point
            else:
                high = middle
        return found

    def _best(self, rows: int) -> tuple[int, float, float]:
        choices = [(0, self._plain(rows), 1.0)]
        for depth in range(1, self.depth + 1) if self.drafter else ():
            star = self.star(rows, depth)
            choices.append((depth, star.point(max(1, self.sharing)).round, star.tokens))
        return min(choices, key=lambda choice: choice[1] / choice[2])

    def _plain(self, rows: int) -> float:
        return self._verify(rows, rows) + self._overhead(1, rows)

    def _longer(self, rows: int, depth: int, prompts: Sequence[float]) -> float:
        """Return how much longer the passes are for a prompt that joins them."""
        tokens = rows * (depth + 1)
        without = self._verify(rows, tokens)
        return sum(self._verify(rows, tokens + prompt) - without for prompt in prompts) / len(prompts)

    def _first(self, rows: int, prompts: Sequence[float]) -> float:
        """Return the time to first token of a request that joins so many rows, halfway through a round."""
        depth, seconds, _ = self.rounds[rows - 1]
        return 1.5 * seconds + self._longer(rows, depth, prompts)

    def _token(self, rows: int, rate: float) -> float:
        """Return the seconds for each row's token while prompts are computed beside it at that rate."""
        depth, seconds, tokens = self.rounds[rows - 1]
        return seconds / tokens / max(1e-9, 1 - rate * self._longer(rows, depth, self._prompts))

    def _quantile(self, shares: list[float], busy: float) -> int:
        """Return the state that is not exceeded in QUANTILE of the time, at least 1."""
        left = QUANTILE
        for state, share in enumerate(shares):
            left -= share
            if left <= 0:
                return max(1, state)
        rest = shares[-1]  # the next states have it times busy, times its square ...
        more = 1 - left * (1 - busy) / (rest * busy)
        return self.rows + (math.ceil(math.log(more) / math.log(busy)) if 0 < more < 1 else 1)


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The numbers of targets and drafters for a load."""

    targets: int
    drafters: int  # that are elsewhere
    sharing: int  # targets of the busiest drafter
    each: LoadPoint  # of a target at its part of the load
    most: LoadPoint  # ... and at the most that it takes


def plan(server: TargetLoad, rate: float, objective: LatencyGoal) -> CapacityPlan | None:
    """Return the fewest targets, and for those the fewest drafters. With `sharing` above 0 at most that many targets
    share a drafter. None if a target misses the goals even alone."""
    best: CapacityPlan | None = None
    for sharing in range(1, server.sharing + 1) if server.sharing else (0,):
        shared = replace(server, sharing=sharing)
        most = shared.most(objective)
        if most is None:
            continue
        targets = math.ceil(rate / most.rate - 1e-9)
        each = shared.at(rate / targets)
        assert each is not None, "below what it takes"
        found = CapacityPlan(targets, math.ceil(targets / sharing) if sharing else 0, sharing, each, most)
        if best is None or (found.targets, found.drafters) < (best.targets, best.drafters):
            best = found
    return best
