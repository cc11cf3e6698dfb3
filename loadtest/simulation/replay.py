"""Plays a policy against an environment of cost curves, in virtual time: no server, no engine, millions of rounds.

The policies are the real ones; the environment draws a round's time and its number of accepted drafts. Every result is
a simulation's. Regret is against the oracle, which knows the curves and plays the best depth of each batch size, and
pays nothing for switching:

    time regret   = sum over rounds of expected seconds - expected tokens * (seconds per token of the oracle)
    paper regret  = sum over rounds of L_t(gamma_t) - L_t(gamma*)             (Nightjar v2, equations 5 and 6)
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from covey.bandits.policy import LengthPolicy, Outcome, Situation, Trials

T = TypeVar("T")
Array = npt.NDArray[np.float64]
DRAFTER = "simulated"
BANK = 1024  # outcomes drawn ahead for one batch size, depth and acceptance


@dataclass(frozen=True, slots=True)
class Costs:
    """Curves of a device. Times in seconds."""

    verify: Callable[[int, int], float]  # (rows, tokens)
    draft: Callable[[int, int], float]  # (rows, depth)
    overhead: Callable[[int], float] = lambda rows: 0.0  # noqa: ARG005
    switch: Callable[[int, int], float] = lambda lag, rows: 0.0  # noqa: ARG005

    def seconds(self, rows: int, depth: int, dearness: float = 1.0) -> float:
        """Return the seconds of a round without catch-up; drafts take `dearness` times as long."""
        draft = dearness * self.draft(rows, depth) if depth else 0.0
        return self.verify(rows, rows * (depth + 1)) + draft + self.overhead(rows)


@dataclass(frozen=True, slots=True)
class Environment:
    """`acceptance` gives, per phase, the round it starts at and a_i by position; phases are in order, the first at 0.
    `dearness` gives the factor of a draft's time in the same way. `lag_limit` is the longest that a request
    runs: a drafter's lag grows no further."""

    costs: Costs
    acceptance: tuple[tuple[int, tuple[float, ...]], ...]
    noise: float = 0.05  # relative deviation of each time
    lag_limit: int = 256
    dearness: tuple[tuple[int, float], ...] = ((0, 1.0),)

    @property
    def max_depth(self) -> int:
        return len(self.acceptance[0][1])


@dataclass(slots=True)
class Replay:
    """Holds what happened. `checkpoints` are (round, time regret, paper regret)."""

    seconds: float = 0.0  # as measured
    tokens: int = 0
    lost: float = 0.0  # time regret
    loss: float = 0.0  # paper regret
    ideal: float = 0.0  # seconds the oracle expects for the same tokens
    switches: int = 0
    depths: dict[int, list[int]] = field(default_factory=dict)  # batch size -> rounds by depth
    rounds: list[tuple[float, float]] = field(default_factory=list)  # each round's part of `ideal` and of `lost`
    checkpoints: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Return the measured tokens per second."""
        return self.tokens / self.seconds

    @property
    def efficiency(self) -> float:
        """Return the expected speed over the oracle's."""
        return self.ideal / (self.ideal + self.lost)

    def between(self, start: int, stop: int) -> float:
        """Return the efficiency of some rounds."""
        ideal = sum(ideal for ideal, _ in self.rounds[start:stop])
        return ideal / (ideal + sum(lost for _, lost in self.rounds[start:stop]))

    def until(self, share: float, start: int, stop: int, window: int) -> int:
        """Return the rounds from `start` until the first `window` of them whose efficiency is at least `share`; all
        there are before `stop` if there is none."""
        starts = range(start, stop - window + 1)
        return next((at - start for at in starts if self.between(at, at + window) >= share), stop - start)

    def slope(self, start: int) -> float:
        """Return the slope of log regret over log rounds, from `start` on: least squares over the checkpoints."""
        points = [(math.log(at), math.log(loss)) for at, _, loss in self.checkpoints if at >= start]
        at, regret = np.array(points).T
        return float(np.polyfit(at, regret, 1)[0])


class World:
    """Draws rounds of an environment."""

    def __init__(self, environment: Environment, rng: np.random.Generator) -> None:
        self._environment = environment
        self._rng = rng
        self._rates = environment.acceptance[0][1]
        self._dearness = environment.dearness[0][1]
        self._banks: dict[tuple[object, ...], tuple[list[int], list[Trials]]] = {}
        self._tables: dict[tuple[object, ...], tuple[list[float], list[float], list[float]]] = {}
        self._draws: list[float] = []
        self._index = 0

    def enter(self, at: int) -> None:
        """Begin round `at`, and with it maybe a new phase."""
        self._rates = _now(self._environment.acceptance, at)
        self._dearness = _now(self._environment.dearness, at)

    def expected(self, rows: int) -> tuple[list[float], list[float], list[float]]:
        """Return seconds, tokens and seconds per token of each depth."""
        key = self._rates, self._dearness, rows
        found = self._tables.get(key)
        if found is None:
            costs, rates = self._environment.costs, self._rates
            seconds = [costs.seconds(rows, depth, self._dearness) for depth in range(len(rates) + 1)]
            tokens = (rows * np.cumsum(np.concatenate([[1.0], np.cumprod(rates)]))).tolist()
            found = self._tables[key] = seconds, tokens, [time / count for time, count in zip(seconds, tokens)]
        return found

    def play(self, rows: int, depth: int, lag: int, previous: int) -> Outcome:
        """Play one round."""
        costs = self._environment.costs
        verify = costs.verify(rows, rows * (depth + 1)) * self._jitter()
        overhead = costs.overhead(rows)
        if depth == 0:
            return Outcome(verify + overhead, rows, 0.0, verify, 0.0, rows)
        catch_up = costs.switch(lag, rows) if previous == 0 else 0.0
        draft = self._dearness * costs.draft(rows, depth) * self._jitter() + catch_up
        accepted, trials = self._bank(rows, depth)
        index = int(self._next() * BANK)
        return Outcome(
            verify + draft + overhead,
            rows + accepted[index],
            draft,
            verify,
            catch_up,
            rows * (depth + 1),
            {(DRAFTER, False): trials[index]},
        )

    def _bank(self, rows: int, depth: int) -> tuple[list[int], list[Trials]]:
        key = self._rates, rows, depth
        found = self._banks.get(key)
        if found is None:
            survivors = np.empty((BANK, depth + 1), np.int64)
            survivors[:, 0] = rows
            for index, rate in enumerate(self._rates[:depth]):
                survivors[:, index + 1] = self._rng.binomial(survivors[:, index], rate)
            counts = survivors.tolist()
            found = survivors[:, 1:].sum(1).tolist(), [Trials(row[:-1], row[1:]) for row in counts]
            self._banks[key] = found
        return found

    def _jitter(self) -> float:
        """Return a log-normal factor of mean 1."""
        noise = self._environment.noise
        # A logistic draw stands in for a normal one: one logarithm, about the same bell.
        uniform = min(max(self._next(), 1e-9), 1 - 1e-9)
        return math.exp(noise * 0.5513 * math.log(uniform / (1.0 - uniform)) - 0.5 * noise * noise)

    def _next(self) -> float:
        if self._index == len(self._draws):
            self._draws, self._index = self._rng.random(65536).tolist(), 0
        self._index += 1
        return self._draws[self._index - 1]


def replay(
    policy: LengthPolicy,
    environment: Environment,
    batches: Iterable[int],
    rng: np.random.Generator,
    *,
    checkpoints: Sequence[int] = (),
) -> Replay:
    """Play one round per batch size. Path probabilities, which some policies need, are not simulated."""
    if policy.verified is not None:
        raise ValueError("a policy that ranks single drafts cannot be replayed without drafts")
    world, result = World(environment, rng), Replay()
    marks = iter(sorted(checkpoints))
    mark = next(marks, 0)
    previous, lag = 0, environment.lag_limit
    for at, rows in enumerate(batches):
        world.enter(at)
        situation = Situation(rows, environment.max_depth, previous, lag, ((DRAFTER, rows),))
        depth = policy.choose(situation)
        starts = previous == 0 and depth > 0
        outcome = world.play(rows, depth, lag, previous)
        policy.update(situation, depth, outcome)
        seconds, tokens, latencies = world.expected(rows)
        best = min(latencies)
        ideal = tokens[depth] * best
        result.seconds += outcome.seconds
        result.tokens += outcome.tokens
        result.ideal += ideal
        lost = seconds[depth] + outcome.catch_up_seconds - ideal
        result.lost += lost
        result.rounds.append((ideal, lost))
        result.loss += latencies[depth] - best + (outcome.catch_up_seconds / depth if starts else 0.0)
        result.switches += starts
        result.depths.setdefault(rows, [0] * (environment.max_depth + 1))[depth] += 1
        lag = 1 if depth else min(lag + 1, environment.lag_limit)
        previous = depth
        if at + 1 == mark:
            result.checkpoints.append((mark, result.lost, result.loss))
            mark = next(marks, 0)
    return result


def _now(phases: Sequence[tuple[int, T]], at: int) -> T:
    return phases[bisect.bisect_right(phases, at, key=lambda phase: phase[0]) - 1][1]


def log_spaced(first: int, last: int, count: int) -> list[int]:
    """Return distinct round numbers, evenly spaced in their logarithm."""
    return sorted({round(value) for value in np.geomspace(first, last, count)})


def roofline(
    base: float, per_token: float, knee: int, *, call: float, step: float, switch_per_token: float = 0.0
) -> Costs:
    """Return a device that is bound by memory up to `knee` tokens a pass and by compute beyond. Drafting has the same
    curve, cheaper by a factor."""
    return Costs(
        verify=lambda _rows, tokens: base + per_token * max(0, tokens - knee),
        draft=lambda rows, depth: call + depth * step * (1.0 + per_token / base * max(0, rows - knee)),
        overhead=lambda rows: 0.0002 + 0.00001 * rows,
        switch=lambda lag, rows: switch_per_token * lag * rows + step,
    )
