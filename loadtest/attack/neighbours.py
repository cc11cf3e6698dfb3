"""Measures what one tenant has to wait for another."""

from __future__ import annotations

import argparse
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from covey.contracts.types import JsonDict
from covey.front.keys import hashed
from covey_client.progress import status
from loadtest.attack.launched import Launched
from loadtest.attack.streams import QUESTION, Outcome, Question, Streams
from loadtest.attack.tenant import CALLERS
from loadtest.bench.derive import private

ALONE, MOST = "alone", 3.0  # times what the victim waits alone, at the median
TOKENS = 16
PAUSE = 0.2  # seconds between two requests of the victim
DEADLINE = 120.0
PROFILE = """
[front]
keys = "{keys}"
"""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=30, help="of the victim, one after the other, in each part")


def run(given: argparse.Namespace, console: Console) -> JsonDict:
    victim, other = secrets.token_hex(16), secrets.token_hex(16)
    answers: dict[str, Sequence[Outcome]] = {}
    with Launched(_profile(given.out, victim=victim, other=other), given.out, small=False) as server:
        known = _asked(server, victim, 5).known  # nothing is warm yet
        for way in (ALONE, *CALLERS):
            with status(console, f"beside {way}"), _attacked(server, other, way):
                answers[way] = _asked(server, victim, given.requests, known).answers
    found = judged(answers)
    console.print(_table(found))
    return found


def _profile(out: Path, **keys: str) -> str:
    """Return a profile with two tenants of one weight, with a key each."""
    file = private(out / "keys", "".join(f"{name} {hashed(key)}\n" for name, key in keys.items()))
    path = out / "neighbours.toml"
    path.write_text(PROFILE.format(keys=file))
    return str(path)


@contextmanager
def _attacked(server: Launched, key: str, way: str) -> Iterator[None]:
    if way == ALONE:
        yield
        return
    words = [sys.executable, "-m", "loadtest.attack.tenant", server.front_grpc, server.front_http, way]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{key}\n")
            process.stdin.flush()
            process.stdout.readline()
            yield
        finally:
            process.kill()


def _asked(server: Launched, key: str, count: int, known: Sequence[tuple[int, ...]] = ()) -> Streams:
    """Ask so many requests one after the other, the first of which says what is right where nothing is `known`."""
    ask = Question("grpc", QUESTION, {"max_tokens": TOKENS, "min_tokens": TOKENS})
    streams = Streams(server, [ask], DEADLINE, known, pause=PAUSE, headers={"authorization": f"Bearer {key}"})
    if not known:
        streams.undisturbed()
    streams.start()
    while len(streams.answers) < count:
        time.sleep(PAUSE)
    streams.stop()
    return streams


def judged(answers: dict[str, Sequence[Outcome]]) -> JsonDict:
    """Return the victim's waits by what is beside it, and whether they or its texts are others than alone."""
    waits = {way: [answer.wait for answer in found] for way, found in answers.items()}
    medians = {way: statistics.median(times) for way, times in waits.items()}
    ratios = {way: median / medians[ALONE] for way, median in medians.items()}
    problems = [
        f"beside {way} the victim's answer was {answer.outcome} {answer.error}".strip()
        for way, found in answers.items()
        for answer in found
        if answer.outcome != "right"
    ]
    problems += [
        f"beside {way} the victim waits {ratio:.1f} times as long" for way, ratio in ratios.items() if ratio > MOST
    ]
    worst = {way: max(times) for way, times in waits.items()}
    return {"median_s": medians, "worst_s": worst, "ratios": ratios, "problems": problems}


def _table(found: JsonDict) -> Table:
    made = Table("beside", "median s", "worst s", "times alone", title="the victim's first token")
    for way, median in found["median_s"].items():
        made.add_row(way, f"{median:.3f}", f"{found['worst_s'][way]:.3f}", f"{found['ratios'][way]:.1f}")
    return made
