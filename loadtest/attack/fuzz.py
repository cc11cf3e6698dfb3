"""Sends hundreds of thousands of malformed requests, while other clients' answers must stay the same."""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Sequence

from rich.console import Console

from covey.contracts import profile
from covey.contracts.types import JsonDict
from covey_client.progress import LINE_SECONDS, Steps
from loadtest.attack import verdict
from loadtest.attack.doors import Attack
from loadtest.attack.launched import Launched
from loadtest.attack.streams import DOORS, Outcome, Streams, asks

LOOK_SECONDS = 0.2
FRONT = "\n[front]\nrate = 1e6\nread_seconds = 2.0\n"  # this attack does not test the rate limit
TOKENS, DEADLINE = 48, 120.0
ALONE = 16  # answers before the first of these requests


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--profile", default="emulated-7b", help="of the server")


def run(given: argparse.Namespace, console: Console) -> JsonDict:
    named = given.out / "fuzz.toml"
    named.write_text(profile.find(given.profile).read_text(encoding="utf-8") + FRONT, encoding="utf-8")
    with Launched(str(named), given.out, small=False) as server:
        return _run(given, server, console)


def _run(given: argparse.Namespace, server: Launched, console: Console) -> JsonDict:
    before, began = server.processes(), time.monotonic()
    steady = Streams(server, asks(len(DOORS), TOKENS, 5, ()), DEADLINE)
    attack = Attack(server.front_http, server.front_grpc)
    steady.undisturbed()
    steady.start()
    while len(steady.answers) < ALONE:
        time.sleep(LOOK_SECONDS)
    alone = len(steady.answers)
    running = threading.Thread(target=attack.run, args=(given.requests, given.seed), daemon=True)
    running.start()
    with Steps(console, apart=LINE_SECONDS) as progress:
        task = progress.add_task("requests", total=given.requests)
        while running.is_alive():
            progress.update(task, completed=attack.requests)
            time.sleep(LOOK_SECONDS)
    problems = steady.stop() + verdict.of_answers(steady.answers, errors=False) + attack.wrong
    after = server.processes()
    problems += [f"{name} died" for name, pid in before.items() if after.get(name) != pid]
    said, first = verdict.said(steady.answers, steady.refused), _first(steady.answers[:alone])
    beside = _first(steady.answers[alone:])
    console.print(
        f"{attack.requests} requests; other clients' answers: {said['answers']}; their first token: "
        f"{first or 0:.3f} s alone, {beside or 0:.3f} s beside"
    )
    return {
        **said,
        "first_token_s": {"alone": first, "beside": beside},
        "requests": attack.requests,
        "seconds": time.monotonic() - began,
        "replies": dict(sorted(attack.answers.items())),
        "problems": problems,
    }


def _first(answers: Sequence[Outcome]) -> float | None:
    """Return the median seconds until the first token of a stream, refusals included."""
    waits = [answer.wait for answer in answers if answer.door == DOORS[0]]
    return statistics.median(waits) if waits else None
