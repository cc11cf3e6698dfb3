"""Measures what Ray Serve costs and brings, on one machine with an emulated target: how much later a first token comes
through the ingress than from a server's own front, and two servers behind it beside one without Ray, in turns.

`--part haproxy` is with Serve's own HAProxy and without its extra threads, as docs/ray.md says; `--part proxy` with
Serve's usual proxy. An emulated device sleeps, so that two of them are as fast as two machines, as far as the
processors do for what is around them: that is part of what is measured.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from covey.contracts.profile import load
from covey.contracts.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.derive import derive
from loadtest.bench.over_openai import OverOpenAI
from loadtest.bench.session import Session
from loadtest.bench.statistics import median_ratio, percentile
from loadtest.bench.work import Ask
from loadtest.nodes import application

PROFILE = "emulated-7b"
TENANTS = 1 << 16  # of one address: each run is a tenant of its own
HAPROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
AT_ONCE = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}  # at its end, where no balancer is before it
PARTS = {"haproxy": HAPROXY | AT_ONCE, "proxy": {}}
ALONE, THROUGH = "one server", "through Ray"
CALLERS = (4, 16)  # of each server
REQUESTS = 3  # of each caller
TOKENS, FEW_TOKENS = 96, 4
FIRSTS = 20  # requests one after the other, of which only the first token is looked at
REPETITIONS, FULL_REPETITIONS = 4, 12


@dataclass
class RayRuns:
    """Holds by repetition tokens a second by callers of each server, and seconds until first tokens."""

    rates: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    firsts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> JsonDict:
        first = {name: percentile(found, 0.5) for name, found in self.firsts.items()}
        late = [one - other for one, other in zip(self.firsts[THROUGH], self.firsts[ALONE])]
        return {
            "two_over_one": {
                str(callers): median_ratio(self.rates[THROUGH, callers], self.rates[ALONE, callers])
                for callers in CALLERS
            },
            "tokens_per_second": {
                name: report.spreads({str(callers): self.rates[name, callers] for callers in CALLERS})
                for name in (ALONE, THROUGH)
            },
            "first_token_ms": {name: 1000 * value for name, value in first.items() if value is not None},
            "first_token_later_ms": 1000 * percentile(late, 0.5) if late else None,
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured = {part: RayRuns() for part in session.wanted.parts_of(PARTS)}
    session.summarise = lambda: {"parts": {part: found.summary() for part, found in measured.items()}}
    session.notes |= {"output_tokens": TOKENS, "target": PROFILE}
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS)
    for part, found in measured.items():
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with session.status(f"{part}: starting a cluster with two servers"):
                roomy = derive(load(PROFILE), folder / "roomy.toml", front={"tenants": TENANTS})
                made = stack.enter_context(application(folder, {"profile": str(roomy)}, 2, PARTS[part]))
            urls = {ALONE: made.front(made.nodes[0]), THROUGH: f"127.0.0.1:{made.port}"}
            competitors = [OverOpenAI(url, name, {"ignore_eos": True}) for name, url in urls.items()]
            for competitor in competitors:
                stack.callback(competitor.close)
            _measure(session, part, found, competitors, repetitions)


def _measure(
    session: Session, part: str, measured: RayRuns, competitors: Sequence[OverOpenAI], repetitions: int
) -> None:
    """Take all turns; the first repetition, of fewer requests, only warms up."""
    steps = [
        (f"{part} {number}: {each.name}, {callers}", (number, each, callers))
        for number in range(repetitions + 1)
        for each in workload.shuffled(competitors, number)
        for callers in (1, *CALLERS)
    ]
    for number, competitor, callers in session.each(steps):
        if number > 1 and session.out_of_time():
            return
        tenant = f"{number} {competitor.name} {callers}"
        if callers == 1:
            answers = competitor.run(_asks(FIRSTS, FEW_TOKENS, seed=number), 1, tenant).answers
            measured.firsts[competitor.name] += [each.first for each in answers if number and each.first]
            continue
        together = callers * (1 if competitor.name == ALONE else 2)
        done = competitor.run(_asks(together * (REQUESTS if number else 1), TOKENS, seed=number), together, tenant)
        measured.rates[competitor.name, callers] += [done.rate] if number else []


def _asks(count: int, tokens: int, seed: int) -> list[Ask]:
    return workload.mixed(count, shortest=tokens, longest=tokens, seed=seed)


def show(result: JsonDict, console: Console, _picture: Path) -> None:
    """Show the table alone: there is no curve."""
    columns = ["", "callers", "one, tokens/s", "two through Ray", "ratio", "first token later, ms"]
    rows = []
    for part, found in result["parts"].items():
        for callers in map(str, CALLERS):
            rates = [report.number(found["tokens_per_second"][name][callers], 0) for name in (ALONE, THROUGH)]
            ratio, later = report.number(found["two_over_one"][callers]), found["first_token_later_ms"]
            rows.append([part, callers, *rates, ratio, report.number(later, 1)])
    console.print(report.table("Two servers behind Ray Serve's ingress beside one without Ray", columns, rows))
