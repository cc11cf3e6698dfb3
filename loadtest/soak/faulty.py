"""A soak in which processes of the server are killed, paused and made to spin: what tritonserver, the launcher and
every model take across restarts, and whether texts stay right. Faults, streams and server are `loadtest.faults`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import psutil
from rich.console import Console
from rich.table import Table

from covey.server.command import MANY_THREADS
from covey.server.options import ORCHESTRATOR
from covey.types import JsonDict
from loadtest.bench import facts
from loadtest.faults import report
from loadtest.faults.injection import Injection, kinds, turns
from loadtest.faults.launched import FRONT, SERVER, Launched
from loadtest.faults.streams import Streams, asks

STREAMS, TOKENS, DEADLINE = 8, 64, 240.0
LOOK_SECONDS = 0.25
YOUNG_SECONDS = 5.0  # for which a process grows because it is new
LAUNCHER = "launcher"
FIGURES = ("resident", "threads", "descriptors")
# What a process that lived through all may take more in the end than when it was warm. Triton keeps four threads and a
# region of shared memory of a model that dies within a call, of the orchestrator all of its pool. A process that came
# anew is not compared: it has met other requests, and holds whatever files tritonserver had open when it began.
SLACK = {"threads": 8, "descriptors": 16}
A_DEATH = {"threads": 4, "descriptors": 4}
ORCHESTRATORS_THREADS = int(MANY_THREADS) + 3
A_DEATH_SHARED = 1 << 20
RESIDENT_LIMIT = 0.1  # of its size; a death may cost a megabyte beside that
A_DEATH_RESIDENT = 2 << 20


@dataclasses.dataclass(frozen=True)
class Taken:
    """What one process took at one time."""

    at: float  # seconds after the start
    pid: int
    resident: int  # bytes
    threads: int
    descriptors: int


@dataclasses.dataclass(frozen=True)
class Kind:
    """One process and those that came after it. Figures are medians over the first and the last third of the time."""

    name: str
    lives: int
    first: dict[str, float]
    last: dict[str, float]


def taken(at: float, pid: int) -> Taken | None:
    """None where it has ended."""
    try:
        process = psutil.Process(pid)
        return Taken(at, pid, process.memory_info().rss, process.num_threads(), process.num_fds())
    except psutil.Error:
        return None


def of_kind(name: str, seen: Sequence[Taken]) -> Kind | None:
    """None where too little was seen of it when it was not young."""
    born: dict[int, float] = {}
    for look in seen:
        born.setdefault(look.pid, look.at)
    old = [look for look in seen if look.at - born[look.pid] >= YOUNG_SECONDS]
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


def problems(found: Sequence[Kind], died: Sequence[str], shared: tuple[int, int]) -> list[str]:
    """What grew that may not, when these models died."""
    grew = []
    for kind in (kind for kind in found if kind.lives == 1):
        deaths = len(died) if kind.name in (SERVER, LAUNCHER) else 0
        more = dict.fromkeys(SLACK, 0) | {"threads": ORCHESTRATORS_THREADS * died.count(ORCHESTRATOR) if deaths else 0}
        for figure, slack in SLACK.items():
            most = kind.first[figure] + slack + A_DEATH[figure] * deaths + more[figure]
            if kind.last[figure] > most:
                grew.append(f"{kind.name}: {kind.first[figure]:g} {figure}, then {kind.last[figure]:g}")
        if kind.last["resident"] > kind.first["resident"] * (1 + RESIDENT_LIMIT) + A_DEATH_RESIDENT * deaths:
            sizes = (f"{size['resident'] / 2**20:.1f}" for size in (kind.first, kind.last))
            grew.append(f"{kind.name}: {' MiB resident, then '.join(sizes)}")
    if shared[1] > shared[0] + A_DEATH_SHARED * len(died):
        grew.append(f"shared memory grew from {shared[0]} to {shared[1]} bytes")
    return grew


def soak(given: argparse.Namespace, console: Console) -> list[str]:
    """Returns what went wrong. Raises CoveyError and CoveyClientError where the run could not be made."""
    given.out.mkdir(parents=True, exist_ok=True)
    server = Launched(given.profile, given.out, small=False)
    try:
        found = _run(given, server, console)
    finally:
        server.kill()
    (given.out / "faulty.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong: list[str] = found["problems"]
    return wrong


def _run(given: argparse.Namespace, server: Launched, console: Console) -> JsonDict:
    whole = sorted(server.processes())
    streams = Streams(server, asks(STREAMS, TOKENS, 1, [name for name in whole if name.startswith("draft_")]), DEADLINE)
    streams.undisturbed()
    seen: dict[str, list[Taken]] = {}
    injection, began = Injection(server), time.monotonic()

    def look() -> None:
        for name, pid in (server.processes() | {LAUNCHER: server.pid}).items():
            if (one := taken(time.monotonic() - began, pid)) is not None:
                seen.setdefault(name, []).append(one)

    order = turns([kind for kind in kinds(server) if kind[0] in {*whole} - {SERVER}], random.Random(given.seed))
    streams.start()
    try:
        _for(60 * given.minutes * given.warm_up, look)
        shared = server.shared_bytes()
        due = [
            60 * given.minutes * (given.warm_up + (1 - given.warm_up) * n / given.faults) for n in range(given.faults)
        ]
        while due or injection.open or time.monotonic() - began < 60 * given.minutes:
            injection.look()
            if due and time.monotonic() - began >= due[0] and not injection.open:
                due = due[int(injection.hurt(*next(order))) :]
            look()
            time.sleep(LOOK_SECONDS)
    finally:
        injection.mend()
    wrong = streams.stop() + report.of_answers(streams.answers) + report.of_faults(injection.done)
    _for(YOUNG_SECONDS, look)
    if sorted(server.processes()) != whole:
        wrong.append(f"processes: {', '.join(whole)} before, {', '.join(sorted(server.processes()))} after")
    after = server.shared_bytes()
    found = [kind for name in sorted(seen) if (kind := of_kind(name, seen[name])) is not None]
    wrong += problems(found, [fault.what for fault in injection.done if fault.what != FRONT], (shared, after))
    wrong += [f"left behind: {what}" for what in server.stop()]
    console.print(_table(found))
    return {
        "soak": "faults under load",
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "minutes": given.minutes,
        "processes": [dataclasses.asdict(kind) for kind in found],
        "shared_bytes": {"after_warm_up": shared, "at_the_end": after},
        "faults": Counter(fault.kind for fault in injection.done),
        "answers": Counter(answer.outcome for answer in streams.answers),
        "errors": Counter(answer.error[:200] for answer in streams.answers if answer.error),
        "hardware": facts.hardware(),
        "problems": wrong,
    }


def _for(seconds: float, look: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        time.sleep(LOOK_SECONDS)


def _table(found: Sequence[Kind]) -> Table:
    table = Table("process", "lives", "MiB", "threads", "descriptors", box=None)
    for kind in found:
        figures = [f"{kind.first[figure]:.0f} -> {kind.last[figure]:.0f}" for figure in FIGURES[1:]]
        resident = " -> ".join(f"{part['resident'] / 2**20:.1f}" for part in (kind.first, kind.last))
        table.add_row(kind.name, str(kind.lives), resident, *figures)
    return table
