"""Names policies as benches compare them; takes turns of a closed loop, and shows the results. Knows no server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.session import Session
from loadtest.bench.statistics import best_over
from loadtest.bench.work import Ask, Competitor, Run

OFF, ADAPTIVE, NIGHTJAR, TABLE = "off", "adaptive", "nightjar", "table"
DEPTHS = (1, 2, 3, 4, 5)
LEARNERS = (TABLE, NIGHTJAR, ADAPTIVE)


def fixed(depth: int) -> str:
    return f"fixed:{depth}"


STATIC = (OFF, *map(fixed, DEPTHS))


@dataclass
class PolicyRuns:
    """Holds all runs so far, by concurrency and entrant, in the order of repetitions."""

    runs: dict[int, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        points = {str(concurrency): self._point(self.runs[concurrency]) for concurrency in sorted(self.runs)}
        over = [point["adaptive_over_best_static"] for point in points.values()]
        known = [ratio for ratio in over if ratio is not None]
        return {"points": points, "min_adaptive_over_best_static": min(known, default=None)}

    def _point(self, runs: Mapping[str, list[Run]]) -> JsonDict:
        whole = min((len(done) for done in runs.values()), default=0)
        rates = {name: [run.rate for run in done[:whole]] for name, done in runs.items()}
        static = {name: rates[name] for name in STATIC if name in rates}
        found: JsonDict = {"adaptive_over_best_static": None, "interval": None, "picked": None}
        best = best_over({ADAPTIVE: rates[ADAPTIVE]}, static, single=True) if ADAPTIVE in rates and static else None
        if best is not None:
            found |= {"adaptive_over_best_static": best.ratio, "picked": list(best.opponents)}
            found["interval"] = best.span if whole > 1 else None
        fixed_ones = {name: values for name, values in static.items() if name != OFF}
        for key, chosen in (
            ("best_fixed_over_off", fixed_ones),
            ("adaptive_over_off", {ADAPTIVE: rates.get(ADAPTIVE, [])}),
        ):
            over = best_over(chosen, {OFF: rates[OFF]}) if OFF in rates and chosen else None
            found[key] = over.ratio if over else None
        found["tokens_per_second"] = report.spreads(rates)
        found["depth"] = {name: _depth(done) for name, done in runs.items()}
        return found


def take_turns(
    session: Session,
    runs: dict[int, dict[str, list[Run]]],
    entrants: Sequence[Competitor],
    requests: Mapping[int, int],
    asks: Callable[[int, int], list[Ask]],
    repetitions: int,
) -> None:
    """Send `requests` to every entrant at every concurrency, in an order drawn anew each time; fewer times when time is
    up. `runs` are by concurrency and entrant. `asks` makes a number of requests by a seed, the same for every
    entrant."""
    for repetition in range(repetitions):
        seed = session.wanted.seed * 1000 + repetition
        steps = [
            (f"repetition {repetition + 1}: {entrant.name} at {c}", (c, entrant))
            for c in requests
            for entrant in workload.shuffled(entrants, seed, c)
        ]
        for concurrency, entrant in session.each(steps):
            if repetition and session.out_of_time():
                return
            tenant = f"{repetition} {entrant.name} {concurrency}"  # finds nothing of the others' in any cache
            done = entrant.run(asks(requests[concurrency], seed), concurrency, tenant=tenant)
            runs[concurrency][entrant.name].append(done)
        session.notes["repetitions"] = repetition + 1


def _depth(runs: list[Run]) -> float | None:
    """Return the drafted tokens of a row and round, on average: every round emits one token that was not drafted."""
    drafted = sum(answer.drafted for run in runs for answer in run.answers)
    rounds = sum(len(answer.tokens) - answer.accepted for run in runs for answer in run.answers)
    return drafted / rounds if rounds else None


def _there(points: JsonDict) -> list[str]:
    found = {name for point in points.values() for name in point["tokens_per_second"]}
    return [name for name in (*STATIC, *LEARNERS) if name in found]


def shown(title: str, points: JsonDict) -> Table:
    """Return a table with a column for each concurrency."""
    rates = [point["tokens_per_second"] for point in points.values()]
    rows = [[name, *(report.number(by.get(name), 0) for by in rates)] for name in _there(points)]
    for key, digits in (("best_fixed_over_off", 2), ("adaptive_over_off", 2), ("adaptive_over_best_static", 3)):
        rows.append([key.replace("_", " "), *(report.number(point[key], digits) for point in points.values())])
    rows.append(["adaptive's depth", *(report.number(point["depth"].get(ADAPTIVE), 1) for point in points.values())])
    return report.table(title, ["at", *points], rows)
