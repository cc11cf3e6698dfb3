"""Part of the bench `load`: what a server brings whose planner knows nothing yet, beside the best it could have done.

Before each of its turns the model `covey` is loaded anew, with no learnt state and no curves kept: it measures what
rounds take, says that it serves, and the callers begin at once. Target and drafter stay loaded, since a planner's first
minute is in question and not a process's. `off` and `fixed:k` are settings of requests to the same server, which its
policy does not learn from; their rates leave out the second in which the callers' first prompts are read, which that of
`covey` does not. Turns are shorter than a minute where time is short: that is harder, as what is learnt pays later.
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from covey import profile
from covey.errors import CoveyError, SettingError
from covey.server import Server
from covey.server.options import ORCHESTRATOR
from covey.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.derive import with_drafters
from loadtest.bench.line_up import asks
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import COVEY, OFF, fixed
from loadtest.bench.session import FULL, QUICK, Session
from loadtest.bench.statistics import Spread, crosswise, geometric_mean, interval
from loadtest.bench.work import Ask

CONCURRENCIES, FULL_CONCURRENCIES, QUICK_CONCURRENCIES = (1, 4, 16), (1, 2, 4, 8, 16, 32), (4,)
STATIC, QUICK_STATIC = (OFF, *map(fixed, (1, 3, 5))), (OFF, fixed(3))
SECONDS, FULL_SECONDS, QUICK_SECONDS = 15.0, 60.0, 3.0  # of covey's turn
STATIC_SECONDS = 4.0  # of a static choice's, which has nothing to learn
RAMP_SECONDS = 1.0  # before it
RESTARTS, FULL_RESTARTS, QUICK_RESTARTS = 8, 20, 2
KEPT = "state kept"
KEPT_RESTARTS = 2  # a point, with what the turn before has taught; shown beside
LOAD_SECONDS = 600.0
POLL_SECONDS = 0.1


@dataclass
class Measured:
    """Tokens per second by concurrency and entrant, one value a repetition."""

    rates: dict[int, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    notes: JsonDict = field(default_factory=dict)

    def summary(self) -> JsonDict:
        points = {str(concurrency): self._point(self.rates[concurrency]) for concurrency in sorted(self.rates)}
        ratios = [point["ratio"] for point in points.values() if point["ratio"] is not None]
        mean = geometric_mean(ratios) if ratios else None
        return {"first_minute_covey_over_best_static": {"geometric_mean": mean, "points": points, **self.notes}}

    def _point(self, rates: dict[str, list[float]]) -> JsonDict:
        static = {name: values for name, values in rates.items() if name not in (COVEY, KEPT)}
        whole = {COVEY: rates[COVEY]} if COVEY in rates and static else {}
        ratios, _, opponents = crosswise(whole, static) if whole else ([], (), ())
        kept, _, _ = crosswise({KEPT: rates[KEPT]}, static) if whole and KEPT in rates else ([], (), ())
        return {
            "ratio": geometric_mean(ratios) if ratios else None,
            "interval": list(interval(ratios)) if ratios else None,
            "restarts": len(ratios),
            "picked": list(opponents),
            "with_state_kept": geometric_mean(kept) if kept else None,
            "tokens_per_second": {name: report.as_json(Spread.of(values)) for name, values in rates.items()},
        }


def run(session: Session, measured: Measured) -> None:
    """Measure; results go into `measured` as they come."""
    wanted = session.wanted
    size = {QUICK: 0, FULL: 2}.get(wanted.size, 1)
    seconds = (QUICK_SECONDS, SECONDS, FULL_SECONDS)[size]
    concurrencies = (QUICK_CONCURRENCIES, CONCURRENCIES, FULL_CONCURRENCIES)[size]
    settings = profile.load(wanted.profile)
    if not settings.speculation.drafters:
        raise SettingError(f"profile {wanted.profile}: speculation.drafters is empty; name one that has drafters")
    measured.notes |= {"seconds": seconds, "static_seconds": STATIC_SECONDS, "ramp_seconds": RAMP_SECONDS}
    restarts = session.repetitions(RESTARTS, FULL_RESTARTS, QUICK_RESTARTS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drafters = settings.speculation.drafters[:1]
        path = with_drafters(
            settings, folder / "first.toml", drafters, policy=COVEY, costs=profile.AUTO, state=profile.AUTO
        )
        models = ("target", ORCHESTRATOR, *drafters)
        options = replace(wanted.options(), profile=str(path), models=models, kept=folder / "kept")
        server = stack.enter_context(session.server(options))
        names = QUICK_STATIC if size == 0 else STATIC
        entrants = {name: OverTriton(server, name, stream=True, settings={"speculation": name}) for name in names}
        entrants[COVEY] = OverTriton(server, COVEY, stream=True)
        for entrant in entrants.values():
            stack.callback(entrant.close)
        for name, entrant in entrants.items():  # what is compiled for a shape is compiled now
            entrant.run(asks(2 * max(concurrencies), 0), max(concurrencies), tenant=f"warm-up {name}")
        for repetition in range(restarts):
            if repetition and session.out_of_time():
                break
            for concurrency in concurrencies:
                _turns(session, measured, server, entrants, concurrency, repetition, seconds)


def _turns(
    session: Session,
    measured: Measured,
    server: Server,
    entrants: dict[str, OverTriton],
    concurrency: int,
    repetition: int,
    seconds: float,
) -> None:
    """Everybody's at one concurrency, in an order of its own."""
    rates = measured.rates[concurrency]
    order = workload.shuffled(list(entrants), session.wanted.seed, repetition, concurrency)
    for name, _ in zip(order, session.steps([f"restart {repetition + 1}: {name} at {concurrency}" for name in order])):
        seed = session.wanted.seed * 1000 + repetition
        tenant = f"{repetition} {name} {concurrency}"  # finds nothing of the others' in any cache
        if name != COVEY:
            came = entrants[name].flow(_asks(seed), concurrency, RAMP_SECONDS + STATIC_SECONDS, tenant)
            rates[name].append(_rate(came, RAMP_SECONDS, RAMP_SECONDS + STATIC_SECONDS))
            continue
        restart(server, fresh=True)
        rates[COVEY].append(_rate(entrants[COVEY].flow(_asks(seed), concurrency, seconds, tenant), 0.0, seconds))
        if repetition < KEPT_RESTARTS:
            restart(server, fresh=False)
            again = entrants[COVEY].flow(_asks(seed), concurrency, seconds, f"{tenant} again")
            rates[KEPT].append(_rate(again, 0.0, seconds))


def restart(server: Server, *, fresh: bool) -> None:
    """Load the orchestrator anew, `fresh` with nothing of what it had kept, and wait until it serves."""
    control = replace(server.control, seconds=LOAD_SECONDS)
    control.unload(ORCHESTRATOR)
    _wait(lambda: control.states()[ORCHESTRATOR] == "UNAVAILABLE")
    if fresh:
        shutil.rmtree(server.options.kept_folder())
        server.options.kept_folder().mkdir(mode=0o700)
    control.load(ORCHESTRATOR)
    _wait(server.serves)


def _wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + LOAD_SECONDS
    while not done():
        if time.monotonic() > until:
            raise CoveyError(f"{ORCHESTRATOR} could not be loaded anew in {LOAD_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _asks(seed: int) -> Iterator[Ask]:
    """Without end; the same for all."""
    return itertools.chain.from_iterable(asks(64, seed + 7919 * part) for part in itertools.count())


def _rate(came: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """Tokens per second that came from `start` to `end`."""
    return max(math.ulp(1.0), sum(tokens for when, tokens in came if start <= when < end)) / (end - start)


def rows(points: JsonDict) -> list[list[str]]:
    """For the table that `load` shows."""
    return [
        [
            concurrency,
            report.number(point["ratio"], 3),
            " to ".join(report.number(each, 3) for each in point["interval"] or (None,)),
            ", ".join(point["picked"]) or "-",
            report.number(point["with_state_kept"], 3),
        ]
        for concurrency, point in points.items()
    ]
