"""`python -m loadtest.soak --minutes 10`. Exit status: 0 memory is flat and nothing failed, 1 not so, 2 could not run,
130 interrupted."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from covey.errors import CoveyError, SettingError
from covey.profile import DEFAULT_PROFILE
from covey.server import FREE, Options, Server, ServerDied
from covey.types import JsonDict
from covey_client import CoveyClientError
from loadtest.bench import facts
from loadtest.soak import faulty, load, picture, verdict
from loadtest.soak.footprint import Footprint, Sample

FLAT, GREW, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130
LOOKS = 600  # of a whole run; at most one a second
LATE = 60.0  # seconds that the load generators may take beyond the run, to start and to end
HELD_UP_SECONDS = 10.0  # between two looks: this process did not run, and perhaps nothing did
LINE_SECONDS = 30.0  # between lines of progress where there is no terminal


@dataclasses.dataclass(frozen=True)
class Soaked:
    """One run."""

    capacity: dict[str, float]  # requests a second by kind of traffic
    samples: list[Sample]
    strays: dict[str, int]
    finished: dict[str, int]  # requests by kind
    errors: list[str]
    load_average: float
    interrupted: bool


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True)
    if given.faults:
        return _with_faults(given, console)
    try:
        with _server(given) as (addresses, process):
            soaked = _soak(given, addresses, Footprint(process), console)
    except (CoveyError, ServerDied) as error:
        console.print(f"soak: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        console.print("interrupted before the load began")
        return INTERRUPTED
    return _report(given, soaked, console)


def _with_faults(given: argparse.Namespace, console: Console) -> int:
    try:
        wrong = faulty.soak(given, console)
    except (CoveyError, CoveyClientError, OSError) as error:
        console.print(f"soak: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    for problem in wrong:
        console.print(f"soak: {problem}", style="red", markup=False)
    return GREW if wrong else FLAT


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.soak",
        description="Measure a server's capacity, offer a share of it for a while, and fail where memory grows.",
        epilog="Ctrl-C ends a run early; what ran is judged.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long load is offered")
    parser.add_argument("--share", type=float, default=0.8, help="of the measured capacity")
    parser.add_argument("--warm-up", type=float, default=0.25, help="part of the time that is not judged")
    parser.add_argument("--faults", type=int, default=0, help="instead of measured load: streams, and so many faults")
    parser.add_argument("--seed", type=int, default=1, help="of the faults' order")
    parser.add_argument("--capacity-seconds", type=float, default=30.0, help="how long capacity is measured")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder for soak.json, soak.png, the load")
    parser.add_argument("--profile", default=DEFAULT_PROFILE, help="of the server that is started")
    parser.add_argument("--model", default="", metavar="FOLDER", help="Hugging Face folder of another target")
    parser.add_argument("--server", type=int, default=0, metavar="PID", help="start none: tritonserver's process here")
    parser.add_argument("--url", default="127.0.0.1:8001", help="of --server: gRPC, HOST:PORT")
    parser.add_argument("--http-url", default="127.0.0.1:8000", help="of --server")
    parser.add_argument("--metrics-url", default="127.0.0.1:8002", help="of --server")
    given = parser.parse_args(arguments)
    if given.faults < 0 or (given.faults and (given.server or given.model)):
        parser.error("faults: at least 0, and without --server or --model")
    if not (given.minutes > 0 and 0 < given.share <= 1 and 0 <= given.warm_up < 1 and given.capacity_seconds > 0):
        parser.error("minutes, capacity-seconds: above 0; share: above 0, at most 1; warm-up: 0 to below 1")
    return given


@contextlib.contextmanager
def _server(given: argparse.Namespace) -> Iterator[tuple[load.Addresses, int]]:
    if given.server:
        yield load.Addresses(given.url, given.http_url, given.metrics_url), given.server
        return
    options = Options(
        http_port=FREE,
        grpc_port=FREE,
        metrics_port=FREE,
        profile=given.profile,
        model=given.model,
        drain_seconds=2.0,  # all that is left then is of clients that left
    )
    with Server(options) as server:
        metrics = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
        yield load.Addresses(server.grpc_url, server.http_url, metrics), server.pid


def _soak(given: argparse.Namespace, addresses: load.Addresses, footprint: Footprint, console: Console) -> Soaked:
    closed = load.Traffic(addresses, given.out, "capacity")
    closed.start({kind.name: f"closed:{kind.users}" for kind in load.KINDS}, given.capacity_seconds)
    try:
        wrong = _watch(closed, footprint, given.capacity_seconds, "capacity", console)
    finally:
        closed.stop()
    wrong = wrong or closed.errors()
    if wrong:
        raise SettingError(f"capacity could not be measured: {'; '.join(wrong)}")
    capacity = load.capacity(closed.runs(), skip=given.capacity_seconds / 4)
    idle = [name for name, rate in capacity.items() if not rate]
    if idle:
        raise SettingError(f"no request of kind {idle[0]} ended while capacity was measured: give --capacity-seconds")
    console.print(f"capacity: {_listed(capacity)} requests/s; offering {100 * given.share:.0f} % of it")
    traffic, strays = load.Traffic(addresses, given.out, "load"), load.Strays(addresses)
    strays.start()
    paced = {kind.name: f"paced:{kind.users},{given.share * capacity[kind.name]:.4f}" for kind in load.KINDS}
    traffic.start(paced, 60 * given.minutes)
    samples: list[Sample] = []
    averages: list[float] = []
    interrupted, errors = False, []
    try:
        errors = _watch(traffic, footprint, 60 * given.minutes, "load", console, samples, averages)
    except KeyboardInterrupt:
        interrupted = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # or the second loses what the first wants judged
        console.print("interrupted: judging what ran")
    finally:
        traffic.stop()
        errors += strays.stop() + traffic.errors()
    finished = {name: sum(record.finished for record in run.records) for name, run in traffic.runs().items()}
    average = statistics.mean(averages) if averages else 0.0
    return Soaked(capacity, samples, dict(strays.asked), finished, errors, average, interrupted)


def _watch(
    traffic: load.Traffic,
    footprint: Footprint,
    seconds: float,
    label: str,
    console: Console,
    samples: list[Sample] | None = None,
    averages: list[float] | None = None,
) -> list[str]:
    """Look at the memory until the load has ended, or a process of the server has; returns what went wrong."""
    began = looked = time.monotonic()
    held_up = 0.0
    every = max(1.0, seconds / LOOKS)
    columns = (
        TextColumn(label),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} s {task.fields[said]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        task, line = bar.add_task(label, total=seconds, said=""), LINE_SECONDS
        while traffic.running:
            gap, looked = time.monotonic() - looked, time.monotonic()
            held_up += gap if gap > HELD_UP_SECONDS else 0.0
            now = looked - began
            if now - held_up > seconds + load.GRACE + LATE:
                return ["the load generators did not end in time"]
            ended = footprint.ended()
            if ended:
                traffic.stop()
                return [f"ended under load: {', '.join(ended)}"]
            found = footprint.look(now)
            if samples is not None and averages is not None:
                samples.append(found)
                averages.append(os.getloadavg()[0])
            said = f"{sum(found.resident.values()) / 2**20:.0f} MiB resident, {found.shared / 2**20:.0f} MiB shared"
            bar.update(task, completed=min(now, seconds), said=said)
            if not console.is_terminal and now >= line:
                line += LINE_SECONDS
                console.print(f"{label} {now:.0f}/{seconds:.0f} s, {said}")
            time.sleep(every)
    return []


def _report(given: argparse.Namespace, soaked: Soaked, console: Console) -> int:
    warm_up = given.warm_up * (soaked.samples[-1].at if soaked.samples else 0.0)
    found = verdict.judge(soaked.samples, warm_up, soaked.errors)
    result = _result(given, soaked, found, warm_up)
    path = given.out / "soak.json"
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    table = Table("process", "MiB", "growth, %", box=None)
    for trend in found.trends:
        table.add_row(trend.name, f"{trend.last / 2**20:.1f}", f"{100 * trend.growth:+.2f}")
    Console().print(table)
    if found.trends:
        title = (
            f"{result['profile']}, {given.minutes:g} minutes at {100 * given.share:.0f} % of "
            f"{sum(soaked.capacity.values()):.1f} requests/s: {'flat' if found.passed else 'not flat'}"
        )
        picture.draw(soaked.samples, found, warm_up, title, path.with_suffix(".png"))
    for reason in found.reasons():
        console.print(f"soak: {reason}", style="red", markup=False)
    print(f"{'passed' if found.passed else 'failed'}: {path}")
    return INTERRUPTED if soaked.interrupted else FLAT if found.passed else GREW


def _result(given: argparse.Namespace, soaked: Soaked, found: verdict.Verdict, warm_up: float) -> JsonDict:
    return {
        "soak": "memory under load",
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "interrupted": soaked.interrupted,
        "passed": found.passed,
        "reasons": found.reasons(),
        "profile": "as given" if given.server else given.profile,
        "minutes": given.minutes,
        "share": given.share,
        "warm_up_seconds": round(warm_up, 1),
        "limit": verdict.LIMIT,
        "capacity_requests_per_second": soaked.capacity,
        "requests_finished": soaked.finished,
        "strays": soaked.strays,
        "load_average": round(soaked.load_average, 2),
        "held_up_seconds": round(sum(gap for gap in _gaps(soaked.samples) if gap > HELD_UP_SECONDS), 1),
        "hardware": facts.hardware(),
        "versions": facts.versions(),
        "processes": [dataclasses.asdict(trend) for trend in found.trends],
        "shared_bytes": {"after_warm_up": found.shared[0], "at_the_end": found.shared[1]},
        "samples": [dataclasses.asdict(sample) for sample in soaked.samples],
    }


def _gaps(samples: Sequence[Sample]) -> Iterator[float]:
    return (later.at - earlier.at for earlier, later in itertools.pairwise(samples))


def _listed(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} {rate:.2f}" for name, rate in rates.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
