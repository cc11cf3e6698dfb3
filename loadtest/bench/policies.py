"""Policies as benches compare them, by name, and what a closed loop found of them. Knows no server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from covey.types import JsonDict
from loadtest.bench import report
from loadtest.bench.statistics import Spread, best_over
from loadtest.bench.work import Run

OFF, COVEY, NIGHTJAR, TABLE = "off", "covey", "nightjar", "table"
DEPTHS = (1, 2, 3, 4, 5)
LEARNERS = (TABLE, NIGHTJAR, COVEY)


def fixed(depth: int) -> str:
    return f"fixed:{depth}"


STATIC = (OFF, *map(fixed, DEPTHS))


@dataclass
class Measured:
    """All runs so far, by concurrency and entrant, in the order of repetitions."""

    runs: dict[int, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        points = {str(concurrency): self._point(self.runs[concurrency]) for concurrency in sorted(self.runs)}
        over = [point["covey_over_best_static"] for point in points.values()]
        known = [ratio for ratio in over if ratio is not None]
        return {"points": points, "min_covey_over_best_static": min(known, default=None)}

    def _point(self, runs: Mapping[str, list[Run]]) -> JsonDict:
        whole = min((len(done) for done in runs.values()), default=0)
        rates = {name: [run.rate for run in done[:whole]] for name, done in runs.items()}
        static = {name: rates[name] for name in STATIC if name in rates}
        found: JsonDict = {"covey_over_best_static": None, "interval": None, "picked": None}
        best = best_over({COVEY: rates[COVEY]}, static) if COVEY in rates and static else None
        if best is not None:
            found |= {"covey_over_best_static": best.ratio, "interval": [best.low, best.high]}
            found["picked"] = list(best.opponents)
        elif whole:
            fastest = max(static, key=lambda name: static[name][0])
            found |= {"covey_over_best_static": rates[COVEY][0] / static[fastest][0], "picked": [fastest]}
        found["tokens_per_second"] = {name: report.as_json(Spread.of(values)) for name, values in rates.items()}
        found["depth"] = {name: _depth(done) for name, done in runs.items()}
        return found


def _depth(runs: list[Run]) -> float | None:
    """Drafted tokens of a row and round, on average: every round emits one token that was not drafted."""
    drafted = sum(answer.drafted for run in runs for answer in run.answers)
    rounds = sum(len(answer.tokens) - answer.accepted for run in runs for answer in run.answers)
    return drafted / rounds if rounds else None
