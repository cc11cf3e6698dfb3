"""ADA-BINGREEDY, as in Nightjar's comparison: the same bins, but no batch sizes and no switching cost.

It has one hierarchy and one set of means for all batch sizes, exploration 1/sqrt(b), and mean latency per token. Like
Nightjar's version, it leaves out the tests for change that restart the original (Luo et al. 2018, "Efficient contextual
bandits in non-stationary worlds"). An arm never played counts as infinitely slow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from covey.bandits.nightjar import Nightjar
from covey.bandits.policy import Outcome, Situation


class AdaBinGreedy(Nightjar):
    """Implements `LengthPolicy`: Nightjar that sees one batch size and free switching."""

    def __init__(self, max_depth: int, rng: np.random.Generator) -> None:
        super().__init__(max_depth, rng, switch_cost=lambda _lag, _rows: 0.0)

    def choose(self, situation: Situation) -> int:
        return super().choose(replace(situation, rows=0))

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        super().update(replace(situation, rows=0, previous=1), depth, outcome)

    def exploration(self, index: int) -> float:
        return float(index**-0.5)
