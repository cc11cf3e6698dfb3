"""Runs for long: what tritonserver, the launcher and every model take must not add up, and texts stay what they are.

Figures are medians over the first and the last third of the time; without faults of what follows the warm-up, with them
of all of it, so that the first third is mostly before the first fault. Triton keeps four threads and a region of shared
memory of a model that dies within a call, of the orchestrator all of its pool. A process that came anew is not
compared: it has met other requests, and holds whatever files tritonserver had open when it began.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Sequence

import psutil
from rich.console import Console
from rich.table import Table

from covey.contracts.profile import DEFAULT_PROFILE
from covey.contracts.types import JsonDict
from covey.server.command import MANY_THREADS
from covey.server.options import ORCHESTRATOR
from loadtest.attack import verdict
from loadtest.attack.injection import Injection, kinds, turns
from loadtest.attack.launched import FRONT, LAUNCHER, SERVER, Launched
from loadtest.attack.streams import Strays, Streams, asks

TOKENS, DEADLINE = 64, 240.0
LOOK_SECONDS = 0.25
WARM_UP = 0.25  # part of the time, without faults; not judged
LINE_SECONDS = 60.0  # between lines of progress
YOUNG_SECONDS = 5.0  # for which a process grows because it is new
FIGURES = ("resident", "threads", "descriptors")
SLACK = {"threads": 8, "descriptors": 16}  # what a process that lived through all may take more in the end
A_DEATH = {"threads": 4, "descriptors": 4}
ORCHESTRATORS_THREADS = int(MANY_THREADS) + 3
A_DEATH_SHARED, A_DEATH_RESIDENT = 1 << 20, 2 << 20  # bytes
# Of a process's size. The middles of the thirds are two thirds of the time apart: 1 % in all where nobody dies.
LIMIT, LIMIT_WITH_FAULTS = 0.01 * 2 / 3, 0.1


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
    parser.add_argument("--faults", type=int, default=0, help="how many processes to hurt meanwhile")
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
    injection, began = Injection(server), time.monotonic()
    seconds, line = 60 * given.minutes, [LINE_SECONDS]

    def look() -> None:
        at = time.monotonic() - began
        for name, pid in (server.processes() | {LAUNCHER: server.pid}).items():
            if (one := taken(at, pid)) is not None:
                seen.setdefault(name, []).append(one)
        if at >= line[0]:
            line[0] += LINE_SECONDS
            resident = sum(looks[-1].resident for looks in seen.values())
            console.print(f"{at:.0f}/{seconds:.0f} s, {resident / 2**20:.0f} MiB, {len(streams.answers)} answers")

    order = turns([kind for kind in kinds(server) if kind[0] in {*whole} - {SERVER}], random.Random(given.seed))
    streams.start()
    if not given.faults:  # whom a fault would break
        strays.start()
    try:
        _for(seconds * WARM_UP, look)
        shared = server.shared_bytes()
        due = [seconds * (WARM_UP + (1 - WARM_UP) * n / given.faults) for n in range(given.faults)]
        while due or injection.open or time.monotonic() - began < seconds:
            injection.look()
            if due and time.monotonic() - began >= due[0] and not injection.open:
                due = due[int(injection.hurt(*next(order))) :]
            look()
            time.sleep(LOOK_SECONDS)
    finally:
        injection.mend()
    wrong = strays.stop(DEADLINE) if not given.faults else verdict.of_faults(injection.done)
    wrong += streams.stop() + verdict.of_answers(streams.answers, errors=bool(given.faults))
    _for(YOUNG_SECONDS, look)
    wrong += verdict.of_processes(whole, sorted(server.processes()))
    after = server.shared_bytes()
    since = 0.0 if given.faults else seconds * WARM_UP
    found = [kind for name in sorted(seen) if (kind := of_kind(name, seen[name], since)) is not None]
    died = [fault.what for fault in injection.done if fault.what != FRONT]
    wrong += problems(found, died, (shared, after), LIMIT_WITH_FAULTS if given.faults else LIMIT)
    wrong += [f"{kind.name} ended" for kind in found if kind.lives > 1 and not given.faults]
    wrong += [f"left behind: {what}" for what in server.stop()]
    console.print(_table(found))
    return {
        **verdict.recovery(injection.done),
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


def of_kind(name: str, seen: Sequence[Taken], since: float = 0.0) -> Kind | None:
    """Return figures of a process and its successors; None if too little was seen of them when they were not young."""
    born: dict[int, float] = {}
    for look in seen:
        born.setdefault(look.pid, look.at)
    old = [look for look in seen if look.at - born[look.pid] >= YOUNG_SECONDS and look.at >= since]
    if not old:
        return None
    third = (old[-1].at - old[0].at) / 3
    parts = (
        [look for look in old if look.at <= old[0].at + third],
        [look for look in old if look.at >= old[-1].at - third],
    )
    first, last = (
        {figure: float(statistics.median(getattr(look, figure) for look in part)) for figure in FIGURES}
        for part in parts
    )
    return Kind(name, len(born), first, last)


def problems(found: Sequence[Kind], died: Sequence[str], shared: tuple[int, int], limit: float) -> list[str]:
    """Return what grew that must not, given that these models died."""
    grew = []
    for kind in (kind for kind in found if kind.lives == 1):
        deaths = len(died) if kind.name in (SERVER, LAUNCHER) else 0
        more = dict.fromkeys(SLACK, 0) | {"threads": ORCHESTRATORS_THREADS * died.count(ORCHESTRATOR) if deaths else 0}
        for figure, slack in SLACK.items():
            most = kind.first[figure] + slack + A_DEATH[figure] * deaths + more[figure]
            if kind.last[figure] > most:
                grew.append(f"{kind.name}: {kind.first[figure]:g} {figure}, then {kind.last[figure]:g}")
        if kind.last["resident"] > kind.first["resident"] * (1 + limit) + A_DEATH_RESIDENT * deaths:
            grew.append(f"{kind.name}: {' MiB resident, then '.join(_resident(kind))}")
    if shared[1] > shared[0] + A_DEATH_SHARED * len(died):
        grew.append(f"shared memory grew from {shared[0]} to {shared[1]} bytes")
    return grew


def _for(seconds: float, look: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        time.sleep(LOOK_SECONDS)


def _table(found: Sequence[Kind]) -> Table:
    table = Table("process", "lives", "MiB", "threads", "descriptors", box=None)
    for kind in found:
        figures = [f"{kind.first[figure]:.0f} -> {kind.last[figure]:.0f}" for figure in FIGURES[1:]]
        table.add_row(kind.name, str(kind.lives), " -> ".join(_resident(kind)), *figures)
    return table


def _resident(kind: Kind) -> list[str]:
    return [f"{part['resident'] / 2**20:.1f}" for part in (kind.first, kind.last)]
