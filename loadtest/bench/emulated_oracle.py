"""An upper bound for policies on emulated pairs: it knows the device and the acceptance and learns nothing.

Each round it plays the depth with the least expected time per token at that batch size, the reading of new requests'
prompts by the drafter included:

    min over k of (verify(n, n (k + 1)) + [k > 0] draft(n, k)) / tokens(n, k) + [k > 0] switch(prompt, 1) / output

It is served by drafters that resume after a pause at no cost (`EmulatedDrafter` with `pauses_cost` off).
"""

from __future__ import annotations

from covey.bandits.length import Forgetful, Outcome, Reason, Situation
from covey.planner.cost_table import Surface
from loadtest.bench.emulated_pairs import Pair

ORACLE = "oracle"


class Oracle(Forgetful):
    """Implements `LengthPolicy`."""

    def __init__(self, pair: Pair, max_depth: int) -> None:
        table = pair.table
        self._verify = Surface(table.verify)
        self._draft = {name: Surface(table.draft[name]) for name in pair.drafters}
        rate = pair.right()
        self._tokens = [sum(rate**depth for depth in range(deepest + 1)) for deepest in range(max_depth + 1)]
        first = Surface(table.switch[pair.drafters[0]])
        self._reading = first(pair.dataset.prompt, 1) / pair.dataset.output
        self.reason = Reason("known")

    def choose(self, situation: Situation) -> int:
        depths = range(situation.ceiling + 1)
        rows, shares = max(1, situation.rows), situation.shares
        usual = min(self._latency(rows, shares, depth) for depth in depths)
        # Beside prefill time is spent anyway: what counts is what a depth gains over spending its time at usual speed.
        losses = [
            self._seconds(rows, shares, depth, situation.prefill)
            - rows * self._tokens[depth] * (usual - (self._reading if depth else 0.0))
            for depth in depths
        ]
        return min(depths, key=losses.__getitem__)

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Nothing to learn."""

    def _latency(self, rows: int, shares: tuple[tuple[str, int], ...], depth: int) -> float:
        seconds = self._seconds(rows, shares, depth, 0)
        return seconds / (rows * self._tokens[depth]) + (self._reading if depth else 0.0)

    def _seconds(self, rows: int, shares: tuple[tuple[str, int], ...], depth: int, prefill: int) -> float:
        verify = self._verify(rows, rows * (depth + 1) + prefill)
        return verify + (max(self._draft[name](count, depth) for name, count in shares) if depth else 0.0)
