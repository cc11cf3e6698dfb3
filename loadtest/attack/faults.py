"""Injects hundreds of faults into a server under load."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

from rich.console import Console

from covey.contracts.types import JsonDict
from covey_client.progress import LINE_SECONDS, Steps
from loadtest.attack import verdict
from loadtest.attack.injection import Injection, turns, wanted
from loadtest.attack.launched import Launched
from loadtest.attack.streams import Streams, asks

LOOK_SECONDS = 0.1
OVERLAP = 0.2  # share of faults that do not wait for recovery
SETTLE_SECONDS = 30.0  # until the blocks of streams that left must be free
DEADLINE = 180.0  # seconds of a request
PROFILE = """
models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", "draft_code", "draft_ngram"]
[target]
threads = 1
kv_memory_mb = 256
[scheduler]
max_running = 32
[speculation]
drafters = ["draft_code", "draft_ngram"]
"""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", type=int, default=200, help="how many")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no more faults begin")
    parser.add_argument("--streams", type=int, default=32, help="clients that ask at once")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between a recovery and the next fault")
    parser.add_argument("--only", default="", metavar="WORDS", help="kinds of faults that hold one of these, by comma")
    parser.add_argument("--profile", default="", help="of the server; default: one with every kind of process")


def run(given: argparse.Namespace, console: Console) -> JsonDict:
    own = given.out / "faults.toml"
    own.write_text(PROFILE)
    with Launched(given.profile or str(own), given.out) as server:
        found = _run(given, server, console)
    console.print(verdict.table(found))
    return found


def _run(given: argparse.Namespace, server: Launched, console: Console) -> JsonDict:
    names, shared = sorted(server.processes()), server.shared_bytes()
    streams = Streams(server, asks(given.streams, given.tokens, given.seed, server.drafters()), DEADLINE)
    streams.undisturbed()
    streams.start()
    injection = Injection(server)
    began = time.monotonic()
    order, drawn = turns(wanted(given.only, server), random.Random(given.seed)), random.Random(given.seed + 1)
    try:
        _inject(given, injection, order, drawn, console)
    finally:
        injection.mend()
    seconds = time.monotonic() - began
    problems = streams.stop() + verdict.of_answers(streams.answers) + verdict.of_faults(injection.done)
    until = time.monotonic() + SETTLE_SECONDS
    while server.used_blocks() and time.monotonic() < until:
        time.sleep(0.5)
    if server.used_blocks():
        problems.append(f"{server.used_blocks():g} blocks are used and nobody asks for anything")
    problems += verdict.of_processes(names, sorted(server.processes()))
    problems += [f"{model} has two processes" for model in server.doubles()]
    grown = server.shared_bytes() - shared
    problems += [f"left behind: {what}" for what in server.stop()]
    return {
        **verdict.recovery(injection.done),
        **verdict.said(streams.answers, streams.refused),
        "seconds": seconds,
        "shared_memory_grown_bytes": grown,
        "problems": problems,
    }


def _inject(
    given: argparse.Namespace,
    injection: Injection,
    order: Iterator[tuple[str, str]],
    drawn: random.Random,
    console: Console,
) -> None:
    """Inject faults at random times: mostly after a full recovery, sometimes during one."""
    with Steps(console, apart=LINE_SECONDS) as progress:
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
                overlaps, due = drawn.random() < OVERLAP, 0.0
            if not due and (overlaps or not injection.open):
                due = now + drawn.expovariate(1 / given.pause)
            time.sleep(LOOK_SECONDS)
