"""`python -m loadtest.faults --faults 200`. Exit status: 0 nothing was lost, 1 something was, 2 could not run, 130
interrupted."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from covey.errors import CoveyError
from covey_client import CoveyClientError
from loadtest.bench import facts
from loadtest.faults import report
from loadtest.faults.far import REMOTE, Far
from loadtest.faults.injection import Injection, turns, wanted
from loadtest.faults.launched import Launched
from loadtest.faults.starts import Cycles
from loadtest.faults.streams import Streams, asks

WHOLE, LOST, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130
LOOK_SECONDS = 0.1
SETTLE_SECONDS = 30.0  # for blocks of streams that left to be freed
PROFILE = """
models = [
  "target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", {drafters},
]
[target]
threads = 1
kv_memory_mb = 256
[scheduler]
max_running = 32
[speculation]
drafters = [{drafters}]
{star}"""


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True)
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        found = Cycles(given, console).run() if given.starts else _under_load(given, console)
    except (CoveyError, CoveyClientError, OSError) as error:
        console.print(f"faults: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    found["settings"] = {key: str(value) for key, value in vars(given).items()}
    found["hardware"] = facts.hardware()
    (given.out / "faults.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console.print(report.table(found))
    for problem in found["problems"]:
        console.print(problem, style="red", markup=False)
    return LOST if found["problems"] else WHOLE


def _under_load(given: argparse.Namespace, console: Console) -> dict[str, object]:
    with ExitStack() as stack:
        far = None if given.profile else _far(given.out, console)
        if far is not None:
            stack.callback(far.end)
        server = Launched(given.profile or _profile(given.out, far), given.out, far)
        stack.callback(server.kill)
        return _run(given, server, console)


def _far(out: Path, console: Console) -> Far | None:
    try:
        return Far(out)
    except OSError as error:
        console.print(f"no drafter of another host: {error}", style="yellow", markup=False)
        return None


def _profile(out: Path, far: Far | None) -> str:
    drafters = ["draft_chat", "draft_ngram", *([REMOTE] if far is not None else [])]
    written = PROFILE.format(drafters=", ".join(f'"{name}"' for name in drafters), star=far.star if far else "")
    (out / "faults.toml").write_text(written)
    return str(out / "faults.toml")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.faults",
        description="Kill, pause and spin processes of a real server at random times under load, fill its shared "
        "memory and the folder of what it keeps, cut it off from a drafter of another host; compare every answer.",
        epilog="Ctrl-C ends a run, and nothing is judged. Full places and another host need a superuser.",
    )
    parser.add_argument("--faults", type=int, default=200, help="how many")
    parser.add_argument("--starts", type=int, default=0, help="instead, hurt so many servers that start and drain")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no more faults begin")
    parser.add_argument("--streams", type=int, default=32, help="clients that ask at once")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--deadline", type=float, default=180.0, help="seconds of a request")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between a recovery and the next fault")
    parser.add_argument("--overlap", type=float, default=0.2, help="share of faults that wait for no recovery")
    parser.add_argument("--only", default="", metavar="WORDS", help="kinds of faults that hold one of these, by comma")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", default="", help="of the server; default: one with every kind of process")
    parser.add_argument("--out", type=Path, default=Path("runs/faults"), help="folder for faults.json and the logs")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace, server: Launched, console: Console) -> dict[str, object]:
    names, shared = sorted(server.processes()), server.shared_bytes()
    drafters = [name for name in names if name.startswith("draft_")]
    streams = Streams(server, asks(given.streams, given.tokens, given.seed, drafters), given.deadline)
    streams.undisturbed()
    streams.start()
    injection = Injection(server)
    began = time.monotonic()
    try:
        _inject(
            given,
            injection,
            turns(wanted(given.only, server), random.Random(given.seed)),
            random.Random(given.seed + 1),
            console,
        )
    finally:
        injection.mend()
    seconds = time.monotonic() - began
    problems = streams.stop()
    problems += report.of_answers(streams.answers) + report.of_faults(injection.done)
    until = time.monotonic() + SETTLE_SECONDS
    while server.used_blocks() and time.monotonic() < until:
        time.sleep(0.5)
    if server.used_blocks():
        problems.append(f"{server.used_blocks():g} blocks are used and nobody asks for anything")
    after = sorted(server.processes())
    if after != names:
        problems.append(f"processes: {', '.join(names)} before, {', '.join(after)} after")
    problems += [f"{model} has two processes" for model in server.doubles()]
    grown = server.shared_bytes() - shared
    problems += [f"left behind: {what}" for what in server.stop()]
    return report.found(injection.done, streams.answers, streams.refused, seconds, grown, problems)


def _inject(
    given: argparse.Namespace,
    injection: Injection,
    order: Iterator[tuple[str, str]],
    drawn: random.Random,
    console: Console,
) -> None:
    """At times of chance: mostly when all is mended, sometimes in the middle of that."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("faults", total=given.faults)
        left, due, overlaps = given.faults, 0.0, False
        until = time.monotonic() + 60 * given.minutes
        while left or injection.open:
            left = left if time.monotonic() < until else 0
            injection.look()
            doing = ", ".join(fault.kind for fault in injection.open) or "streams run"
            progress.update(task, completed=len(injection.done), description=f"{doing:40}")
            now = time.monotonic()
            if left and due and now >= due and (overlaps or not injection.open):
                left -= injection.hurt(*next(order))
                overlaps, due = drawn.random() < given.overlap, 0.0
            if not due and (overlaps or not injection.open):
                due = now + drawn.expovariate(1 / given.pause)
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
