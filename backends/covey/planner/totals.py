"""Counts a planner's choices: how often depths and drafters were chosen, why, and at what expected and real cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from covey.bandits.policy import Reason


class PlannerTotals:
    """Running totals; the engine's thread adds to them once a round, any thread may read them."""

    def __init__(self) -> None:
        self._rounds: Counter[tuple[int, str]] = Counter()
        self._drafters: Counter[tuple[str, str]] = Counter()
        self._switches = {"on": 0, "off": 0}
        self._drafts = False  # in the last counted round
        self._predicted = 0.0
        self._observed = 0.0
        self._lost = 0.0

    def add(
        self, depth: int, reason: Reason, *, ceiling: int, drafted: bool, tokens: int, seconds: float | None
    ) -> None:
        """Count a choice. `seconds` is None if the round does not show its cost."""
        self._rounds[depth, reason.word] += 1
        if drafted != self._drafts:
            self._drafts = drafted
            self._switches["on" if drafted else "off"] += 1
        predicted = reason.predicted
        if depth >= len(predicted) or predicted[depth] == math.inf:
            return
        self._lost += tokens * (predicted[depth] - min(predicted[: ceiling + 1]))
        if seconds is not None:
            self._predicted += tokens * predicted[depth]
            self._observed += seconds

    def draft(self, rows: Mapping[tuple[str, str], int]) -> None:
        """Count the rows of a round, by drafter and reason."""
        self._drafters.update(rows)

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        for (depth, why), rounds in list(self._rounds.items()):
            yield "covey_planner_rounds_total", {"depth": str(depth), "why": why}, rounds
        for (drafter, why), rows in list(self._drafters.items()):
            yield "covey_drafter_chosen_total", {"drafter": drafter, "why": why}, rows
        for to, switches in self._switches.items():
            yield "covey_planner_switches_total", {"to": to}, switches
        yield "covey_planner_predicted_seconds_total", {}, self._predicted
        yield "covey_planner_observed_seconds_total", {}, self._observed
        yield "covey_planner_regret_seconds_total", {}, self._lost
