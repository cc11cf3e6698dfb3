"""DSD (SmartSpec): the depth with the best predicted goodput, from a latency regression and past acceptance.

    latency(n, k)  = c0 + c1 * n (k + 1) + c2 * k + c3 * n k          least squares over all rounds so far
    tokens(n, k)   = n (1 - a^(k+1)) / (1 - a)                         a: moving average of accepted / tried

Each depth is played once first, which is the paper's profiling. Acceptance is measured only in rounds with drafts. Once
a bad spell makes depth 0 look best, there are no drafts, `a` stays, and depth 0 is chosen for ever. This deadlock is
the published behaviour; `adaptive` and `nightjar` do not have it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from covey.bandits.policy import Forgetful, Outcome, Reason, Situation

Array = npt.NDArray[np.float64]


class DSD(Forgetful):
    """Implements `LengthPolicy`."""

    def __init__(self, max_depth: int, acceptance: float = 0.7, memory: float = 0.05) -> None:
        self._acceptance = acceptance
        self._memory = memory  # weight of a new round in the moving average; more in the first rounds
        self._measured = 0
        self._untried = list(range(max_depth + 1))
        self._depths = np.arange(max_depth + 1.0)
        self._normal = 1e-9 * np.eye(4)
        self._sums = np.zeros(4)
        self.reason = Reason("")

    def choose(self, situation: Situation) -> int:
        untried = next((depth for depth in self._untried if depth <= situation.ceiling), None)
        if untried is not None:
            self.reason = Reason("profiling")
            return untried
        latency = np.maximum(1e-9, self._features(situation.rows, self._depths) @ self._weights())
        powers = self._acceptance**self._depths
        per_token = latency / (situation.rows * np.cumsum(powers))
        self.reason = Reason("goodput", per_token.tolist())
        return int(np.argmin(per_token[: situation.ceiling + 1]))

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        if depth in self._untried:
            self._untried.remove(depth)
        features = self._features(situation.rows, np.array((float(depth),)))[0]
        self._normal += np.outer(features, features)
        self._sums += features * outcome.seconds
        tried = sum(sum(trials.tried) for trials in outcome.trials.values())
        if tried:
            accepted = sum(sum(trials.accepted) for trials in outcome.trials.values())
            self._measured += 1
            self._acceptance += max(self._memory, 1 / self._measured) * (accepted / tried - self._acceptance)

    def _weights(self) -> Array:
        return np.linalg.solve(self._normal, self._sums)

    def _features(self, rows: int, depths: Array) -> Array:
        return np.stack((np.ones_like(depths), rows * (depths + 1), depths, rows * depths), axis=-1)
