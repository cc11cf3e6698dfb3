"""Predicts how fast N targets are that share one drafter, which serves their calls one at a time (StarSD, section 3).

    S = depth * t_s                 the drafter works on one target's call
    Z = t_c + t_v                   until that target calls again: the way there and back, and its pass
    T(N) = max(N S, S + Z)          a round of all: N S + T_idle with T_idle = max(0, Z - (N - 1) S)
    N_full = ceil(Z / S) + 1        the fewest targets that leave the drafter no time (N - 1 >= Z / S)
    N_max                           the most with which each is no slower than alone, decoding plainly

A round brings a target its accepted tokens, b (1 - b^d) / (1 - b) on average, and then its own one. The paper leaves
the latter out of its throughput. There are no queues: calls are equally long and come in turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Star:
    """The speeds of one kind of drafter and of target. Times are in seconds."""

    step: float  # t_s, of one level of a draft
    verify: float  # t_v, of a target's pass over a draft
    transfer: float  # t_c, of a round's messages, there and back
    acceptance: float  # probability that a draft is accepted where those before it were
    depth: int
    plain: float  # of a target's token where it decodes plainly, alone
    cold_step: float = 0.0  # t_s of a drafter that idled for long before the call; 0: the same
    cold_after: float = 0.010  # from which gap on

    def __post_init__(self) -> None:
        times = (self.step, self.verify, self.plain, self.cold_step or self.step, self.cold_after)
        if min(times) <= 0 or not all(map(math.isfinite, (*times, self.transfer))) or self.transfer < 0:
            raise ValueError("times must be positive and finite")
        if not (0 <= self.acceptance <= 1 and self.depth >= 1):
            raise ValueError("acceptance must be from 0 to 1, depth at least 1")

    @property
    def away(self) -> float:
        """Return Z."""
        return self.transfer + self.verify

    @property
    def accepted(self) -> float:
        """Return the drafted tokens of a round that are accepted, on average."""
        b = self.acceptance
        return float(self.depth) if b == 1 else b * (1 - b**self.depth) / (1 - b)

    @property
    def tokens(self) -> float:
        """Return the tokens that a round brings: those accepted, and the target's own."""
        return self.accepted + 1

    @property
    def full(self) -> int:
        """Return N_full, by the step of a warm drafter."""
        return math.ceil(self.away / (self.depth * self.step) - 1e-9) + 1

    @property
    def most(self) -> int:
        """Return N_max; 0 if the drafter is of no use to even one target. Beyond N_full a round grows with N."""
        bound = self.tokens * self.plain  # the longest useful round
        count = 0
        while self.point(count + 1).round <= bound * (1 + 1e-9):
            count += 1
            if count >= self.full:
                return max(count, math.floor(bound / self.point(count).service + 1e-9))
        return count

    def point(self, targets: int) -> StarPoint:
        """Return the figures for this number of targets."""
        warm = self._point(targets, self.step)
        if not self.cold_step or warm.gap < self.cold_after:
            return warm
        return self._point(targets, self.cold_step)

    def _point(self, targets: int, step: float) -> StarPoint:
        service = self.depth * step
        idle = max(0.0, self.away - (targets - 1) * service)
        whole = targets * service + idle
        return StarPoint(
            targets=targets,
            step=step,
            service=service,
            round=whole,
            idle=idle,
            wait=max(0.0, (targets - 1) * service - self.away),
            load=targets * service / whole,
            each=self.tokens / whole,
            whole=targets * self.tokens / whole,
        )


@dataclass(frozen=True, slots=True)
class StarPoint:
    """The figures for one number of targets, in seconds and tokens per second."""

    targets: int
    step: float
    service: float  # S
    round: float  # T
    idle: float  # of the drafter in a round of all targets; the paper's table has it per call
    wait: float  # of a call for its turn
    load: float  # share of its time that the drafter works
    each: float  # of one target
    whole: float  # of all

    @property
    def gap(self) -> float:
        """Return how long the drafter idles before a call."""
        return self.idle / self.targets

    @property
    def calls(self) -> float:
        """Return R_q, per second; each target's R_p is 1 / T."""
        return self.targets / self.round
