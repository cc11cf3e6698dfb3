"""Measures what Triton costs: the engine in process, behind Triton (unary and streaming) and behind the front before
Triton (streaming), on the same weights and requests, at several concurrencies. `--part NAME` measures these alone.

Throughput is tokens per second over a closed loop: so many callers, each asking for the next request of a fixed list
when its last answer is complete. All decode greedily without speculation and run to their own output length.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from covey.contracts import profile
from covey.contracts.types import JsonDict
from covey.server import FREE
from covey.server.front import Front
from loadtest.bench import report, workload
from loadtest.bench.in_process import InProcess
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import take_turns
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import median_ratio, percentile
from loadtest.bench.work import Ask, Competitor, Run

IN_PROCESS, UNARY, STREAM, FRONT = "in process", "unary", "stream", "front"
BY_GRPC = (UNARY, STREAM, FRONT)
NAMES = (IN_PROCESS, *BY_GRPC)
STREAMED = (STREAM, FRONT)
CONCURRENCIES = (1, 8, 32)
REQUESTS = {1: 8, 8: 40, 32: 128}
QUICK_REQUESTS = {1: 2, 8: 8, 32: 32}
SHORTEST, LONGEST = 16, 128  # output tokens
REPETITIONS, FULL_REPETITIONS = 7, 20


@dataclass
class TaxRuns:
    """Holds all runs so far, by concurrency and competitor, in the order of repetitions."""

    runs: dict[int, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def rates(self, name: str, concurrency: int) -> list[float]:
        return [run.rate for run in self.runs[concurrency][name]]

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        by = {str(c): c for c in CONCURRENCIES if self.runs[c]}

        def over(name: str, other: str) -> JsonDict:
            return {key: median_ratio(self.rates(name, c), self.rates(other, c)) for key, c in by.items()}

        return {
            "triton_over_inprocess": {UNARY: over(UNARY, IN_PROCESS), STREAM: over(STREAM, IN_PROCESS)},
            "front_over_stream": over(FRONT, STREAM),
            "first_token_ms": {name: {key: self._first(name, c) for key, c in by.items()} for name in STREAMED},
            "tokens_per_second": {
                name: report.spreads({key: self.rates(name, c) for key, c in by.items()}) for name in NAMES
            },
        }

    def _first(self, name: str, concurrency: int) -> float | None:
        """Return the median milliseconds until the first token, over all requests."""
        found = [answer.first for run in self.runs[concurrency][name] for answer in run.answers if answer.first]
        return 1000 * percentile(found, 0.5) if found else None


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    measured = TaxRuns()
    session.summarise = measured.summary
    settings = profile.load(wanted.profile)
    folder = wanted.target_folder(settings)
    quick = wanted.size == QUICK
    requests = QUICK_REQUESTS if quick else REQUESTS
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS)
    parts = wanted.parts_of(NAMES)
    end_id = workload.unused_token(folder)
    with session.status("loading the model in this process"):
        own = [InProcess.load(settings, folder, end_id)] if IN_PROCESS in parts else []
    session.notes |= {
        "target": {"folder": Path(folder).name, "vocabulary": end_id + 1},
        "requests": {str(c): requests[c] for c in CONCURRENCIES},
        "output_tokens": [SHORTEST, SHORTEST * 2 if quick else LONGEST],
    }
    with session.server(wanted.options()) as server, contextlib.ExitStack() as stack:
        front = Front(replace(server.options, front_http_port=FREE, front_grpc_port=FREE), server.deaths)
        stack.callback(front.stop)
        front.start()
        for one in own:
            stack.callback(one.close)
        asked = {"speculation": "off", "end_id": end_id}
        competitors: list[Competitor] = [*own]
        competitors += [
            OverTriton(server, name, stream=name != UNARY, settings=asked, front=front if name == FRONT else None)
            for name in BY_GRPC
            if name in parts
        ]
        _warm_up(session, competitors)
        longest = SHORTEST * 2 if quick else LONGEST

        def asks(count: int, seed: int) -> list[Ask]:
            return workload.mixed(count, shortest=SHORTEST, longest=longest, seed=seed)

        take_turns(session, measured.runs, competitors, requests, asks, repetitions)


def _warm_up(session: Session, competitors: Sequence[Competitor]) -> None:
    with session.status("warming up"):
        for competitor in competitors:
            for concurrency in CONCURRENCIES:
                asks = workload.mixed(concurrency, shortest=4, longest=8, seed=0)
                competitor.run(asks, concurrency, tenant="warm-up")


def show(result: JsonDict, console: Console) -> None:
    columns = ["", *(f"at {c}" for c in CONCURRENCIES)]

    def row(label: str, values: JsonDict, digits: int = 2) -> list[str]:
        return [label, *(report.number(values.get(str(c)), digits) for c in CONCURRENCIES)]

    rates = result["tokens_per_second"]
    rows = [row(f"{name}, tokens/s", rates[name], 0) for name in NAMES]
    over = result["triton_over_inprocess"]
    rows += [
        row("unary over in process", over[UNARY]),
        row("stream over in process", over[STREAM]),
        row("front over stream", result["front_over_stream"]),
        *(row(f"{name}, first token, ms", result["first_token_ms"][name], 1) for name in STREAMED),
    ]
    console.print(report.table("The tax of Triton", columns, rows))
