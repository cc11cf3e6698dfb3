"""Runs for long: what tritonserver, the launcher and every model take must not add up, and texts stay what they are.

Figures are medians over the first and the last third of the time that follows the warm-up.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence

import psutil
from rich.console import Console
from rich.table import Table

from covey.contracts.profile import DEFAULT_PROFILE
from covey.contracts.types import JsonDict
from loadtest.attack import verdict
from loadtest.attack.launched import LAUNCHER, Launched
from loadtest.attack.streams import Strays, Streams, asks

TOKENS, DEADLINE = 64, 240.0
LOOK_SECONDS = 0.25
WARM_UP = 0.25  # part of the time that is not judged
LINE_SECONDS = 60.0  # between lines of progress
SETTLE_SECONDS = 5.0  # for what streams leave to be freed
FIGURES = ("resident", "threads", "descriptors")
SLACK = {"threads": 8, "descriptors": 16}  # what a process may take more in the end
LIMIT = 0.01 * 2 / 3  # of a process's size: 1 % in all, for the middles of the thirds are two thirds of the time apart


@dataclasses.dataclass(frozen=True)
class Taken:
    """Holds what one process takes at one time."""

    at: float  # seconds after the start
    pid: int
    resident: int  # bytes
    threads: int
    descriptors: int


@dataclasses.dataclass(frozen=True)
class Kind:
    """Holds what a process and its successors took in the first and in the last third of the time."""

    name: str
    lives: int
    first: dict[str, float]
    last: dict[str, float]


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0, help="how long load is offered")
    parser.add_argument("--streams", type=int, default=8, help="clients that ask at once")
    parser.add_argument("--profile", default=DEFAULT_PROFILE, help="of the server")


def run(given: argparse.Namespace, console: Console) -> JsonDict:
    with Launched(given.profile, given.out, small=False) as server:
        return _run(given, server, console)


def _run(given: argparse.Namespace, server: Launched, console: Console) -> JsonDict:
    whole = sorted(server.processes())
    streams = Streams(server, asks(given.streams, TOKENS, 1, server.drafters()), DEADLINE)
    streams.undisturbed()
    strays = Strays(server)
    seen: dict[str, list[Taken]] = {}
    began, seconds, line, shared = time.monotonic(), 60 * given.minutes, LINE_SECONDS, 0
    streams.start()
    strays.start()
    while (at := time.monotonic() - began) < seconds:
        for name, pid in (server.processes() | {LAUNCHER: server.pid}).items():
            if (one := taken(at, pid)) is not None:
                seen.setdefault(name, []).append(one)
        if at >= line:
            line += LINE_SECONDS
            resident = sum(looks[-1].resident for looks in seen.values())
            console.print(f"{at:.0f}/{seconds:.0f} s, {resident / 2**20:.0f} MiB, {len(streams.answers)} answers")
        if at >= seconds * WARM_UP:
            shared = shared or server.shared_bytes()
        time.sleep(LOOK_SECONDS)
    wrong = strays.stop(DEADLINE) + streams.stop() + verdict.of_answers(streams.answers, errors=False)
    time.sleep(SETTLE_SECONDS)
    wrong += verdict.of_processes(whole, sorted(server.processes()))
    after = server.shared_bytes()
    found = [kind for name in sorted(seen) if (kind := of_kind(name, seen[name], seconds * WARM_UP)) is not None]
    wrong += problems(found, (shared, after))
    wrong += [f"{kind.name} ended" for kind in found if kind.lives > 1]
    wrong += [f"left behind: {what}" for what in server.stop()]
    console.print(_table(found))
    return {
        **verdict.said(streams.answers, streams.refused),
        "processes": [dataclasses.asdict(kind) for kind in found],
        "shared_bytes": {"after_warm_up": shared, "at_the_end": after},
        "strays": strays.asked,
        "problems": wrong,
    }


def taken(at: float, pid: int) -> Taken | None:
    """Return what a process takes; None if it has ended."""
    try:
        process = psutil.Process(pid)
        return Taken(at, pid, process.memory_info().rss, process.num_threads(), process.num_fds())
    except psutil.Error:
        return None


def of_kind(name: str, seen: Sequence[Taken], since: float) -> Kind | None:
    """Return figures of a process and its successors; None if nothing was seen of them since then."""
    seen = [look for look in seen if look.at >= since]
    if not seen:
        return None
    third = (seen[-1].at - seen[0].at) / 3
    parts = (
        [look for look in seen if look.at <= seen[0].at + third],
        [look for look in seen if look.at >= seen[-1].at - third],
    )
    first, last = (
        {figure: float(statistics.median(getattr(look, figure) for look in part)) for figure in FIGURES}
        for part in parts
    )
    return Kind(name, len({look.pid for look in seen}), first, last)


def problems(found: Sequence[Kind], shared: tuple[int, int]) -> list[str]:
    """Return what grew that must not."""
    grew = []
    for kind in found:
        for figure, slack in SLACK.items():
            if kind.last[figure] > kind.first[figure] + slack:
                grew.append(f"{kind.name}: {kind.first[figure]:g} {figure}, then {kind.last[figure]:g}")
        if kind.last["resident"] > kind.first["resident"] * (1 + LIMIT):
            grew.append(f"{kind.name}: {' MiB resident, then '.join(_resident(kind))}")
    if shared[1] > shared[0]:
        grew.append(f"shared memory grew from {shared[0]} to {shared[1]} bytes")
    return grew


def _table(found: Sequence[Kind]) -> Table:
    table = Table("process", "lives", "MiB", "threads", "descriptors", box=None)
    for kind in found:
        figures = [f"{kind.first[figure]:.0f} -> {kind.last[figure]:.0f}" for figure in FIGURES[1:]]
        table.add_row(kind.name, str(kind.lives), " -> ".join(_resident(kind)), *figures)
    return table


def _resident(kind: Kind) -> list[str]:
    return [f"{part['resident'] / 2**20:.1f}" for part in (kind.first, kind.last)]
