"""UCB over draft depths without any context, as Nightjar's comparison uses BanditSpec's UCBSpec.

Index: mean reward + sqrt(2 ln t / n). The reward is a row's tokens per second divided by the most seen so far, so it
lies in [0, 1]. Means are kept in tokens per second and divided at each choice. So all rewards stay on one scale when a
faster round comes. Every arm is played once first. All batch sizes share the means, which is this policy's weakness.
"""

from __future__ import annotations

import math

from covey.bandits.policy import UNKNOWN, Forgetful, Outcome, Reason, Situation


class BanditSpec(Forgetful):
    """Implements `LengthPolicy`."""

    def __init__(self, max_depth: int) -> None:
        self._pulls = [0] * (max_depth + 1)
        self._speed = [0.0] * (max_depth + 1)  # mean tokens per second and row
        self._fastest = 0.0
        self.reason = Reason("")

    def choose(self, situation: Situation) -> int:
        depths = range(situation.ceiling + 1)
        untried = next((depth for depth in depths if not self._pulls[depth]), None)
        latencies = [1.0 / speed / max(1, situation.rows) if speed else UNKNOWN for speed in self._speed]
        if untried is not None:
            self.reason = Reason("untried", latencies)
            return untried
        bonus = 2.0 * math.log(sum(self._pulls))
        index = [self._speed[depth] / self._fastest + math.sqrt(bonus / self._pulls[depth]) for depth in depths]
        self.reason = Reason("index", latencies)
        return max(depths, key=index.__getitem__)

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        if situation.ceiling == 0:
            return
        speed = 1.0 / (outcome.latency * situation.rows)
        self._fastest = max(self._fastest, speed)
        self._pulls[depth] += 1
        self._speed[depth] += (speed - self._speed[depth]) / self._pulls[depth]
