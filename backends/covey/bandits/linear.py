"""Contextual bandits that are linear in the batch size: LinUCB and linear Thompson sampling (disjoint models).

Each depth has a ridge regression of the reward on x = (1, B / batch_scale). The reward is a row's tokens per second
divided by those of the first round, so it is near 1 on any hardware. Every arm is played once first, because a prior
reward of 0 would leave arms untried for ever. Their weakness is that speed is not linear in B.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from covey.bandits.policy import UNKNOWN, Forgetful, Outcome, Reason, Situation

Array = npt.NDArray[np.float64]
DELTA = 0.05  # probability that the bound in v fails


class _Linear(Forgetful):
    """Ridge regressions by depth, as in both papers: A = I + sum x x', theta = A^-1 sum r x."""

    def __init__(self, max_depth: int, batch_scale: float) -> None:
        self._scale = batch_scale
        self._unit = 0.0  # tokens per second and row of reward 1
        self._untried = list(range(max_depth + 1))
        self._inverse = np.tile(np.eye(2), (max_depth + 1, 1, 1))  # A^-1
        self._sums = np.zeros((max_depth + 1, 2))
        self._theta = np.zeros((max_depth + 1, 2))
        self.reason = Reason("")

    def choose(self, situation: Situation) -> int:
        x = self._context(situation.rows)
        means = (self._theta @ x * self._unit * max(1, situation.rows)).tolist()
        predicted = [1.0 / mean if mean > 0 else UNKNOWN for mean in means]
        untried = next((depth for depth in self._untried if depth <= situation.ceiling), None)
        if untried is not None:
            self.reason = Reason("untried", predicted)
            return untried
        self.reason = Reason("index", predicted)
        return int(np.argmax(self._scores(x)[: situation.ceiling + 1]))

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        if situation.ceiling == 0:
            return
        if depth in self._untried:
            self._untried.remove(depth)
        speed = 1.0 / (outcome.latency * situation.rows)
        self._unit = self._unit or speed
        x = self._context(situation.rows)
        spread = self._inverse[depth] @ x
        self._inverse[depth] -= np.outer(spread, spread) / (1.0 + x @ spread)
        self._sums[depth] += speed / self._unit * x
        self._theta[depth] = self._inverse[depth] @ self._sums[depth]

    def _context(self, rows: int) -> Array:
        return np.array((1.0, rows / self._scale))

    def _scores(self, x: Array) -> Array:
        raise NotImplementedError


class LinUCB(_Linear):
    """Implements `LengthPolicy`: theta'x + alpha sqrt(x' A^-1 x) (Li et al. 2010, Algorithm 1). The paper says to tune
    alpha, as its 1 + sqrt(ln(2 / delta) / 2) may be too large. Here alpha is 1, since rewards are near 1."""

    def __init__(self, max_depth: int, batch_scale: float = 32.0, alpha: float = 1.0) -> None:
        super().__init__(max_depth, batch_scale)
        self._alpha = alpha

    def _scores(self, x: Array) -> Array:
        spread = np.einsum("i,dij,j->d", x, self._inverse, x)
        return np.add(self._theta @ x, self._alpha * np.sqrt(spread))


class LinTS(_Linear):
    """Implements `LengthPolicy`: theta drawn from N(theta, v^2 A^-1), v = R sqrt(9 d ln(t / delta)) (Agrawal and Goyal
    2013, Algorithm 1 and section 2.2). Given x, each score is then normal with mean theta'x and variance v^2 x' A^-1 x,
    so scores are drawn directly.

    R bounds a reward's noise, here 0.1 at 32 rows and 0.5 at one. With these, v is 1.3 to 7 after 1,000 rounds, and
    play is nearly random to satisfy a worst-case bound. So R is 0.05, which plays best in the replay."""

    def __init__(
        self, max_depth: int, rng: np.random.Generator, batch_scale: float = 32.0, noise: float = 0.05
    ) -> None:
        super().__init__(max_depth, batch_scale)
        self._rng = rng
        self._noise = noise
        self._rounds = 1

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        super().update(situation, depth, outcome)
        self._rounds += situation.ceiling > 0

    def _scores(self, x: Array) -> Array:
        spread = self._noise * math.sqrt(9 * len(x) * math.log(self._rounds / DELTA))
        deviation = spread * np.sqrt(np.einsum("i,dij,j->d", x, self._inverse, x))
        return np.add(self._theta @ x, deviation * self._rng.standard_normal(len(deviation)))
