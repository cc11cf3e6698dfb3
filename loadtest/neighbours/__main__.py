"""`python -m loadtest.neighbours`. Exit status: 0 the victim waited no longer than it may, 1 it did, 2 could not run,
130 interrupted."""

from __future__ import annotations

import argparse
import json
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

from covey.errors import CoveyError
from covey.front.keys import hashed
from covey_client import Client, CoveyClientError, Overloaded
from loadtest.bench import facts
from loadtest.faults.launched import Launched
from loadtest.neighbours.attack import BOMBS, FLOOD, QUESTION, STREAMS

FAIR, UNFAIR, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130
ALONE, MOST = "alone", 3.0  # times what the victim waits alone, at the median
PAUSE = 0.2  # seconds between two requests of the victim
PROFILE = """
[front]
keys = "{keys}"
"""


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    console = Console(stderr=True)
    given.out.mkdir(parents=True, exist_ok=True)
    victim, other = secrets.token_hex(16), secrets.token_hex(16)
    try:
        server = Launched(_profile(given.out, victim=victim, other=other), given.out, small=False)
    except (CoveyError, OSError) as error:
        console.print(f"neighbours: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    waits: dict[str, list[float]] = {}
    try:
        _first_tokens(server, victim, 5)  # nothing is warm yet
        for way in (ALONE, FLOOD, BOMBS, STREAMS):
            with console.status(way), _attacked(server, other, way):
                waits[way] = _first_tokens(server, victim, given.requests)
    except (CoveyClientError, OSError) as error:
        console.print(f"neighbours: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        server.kill()
    found = _found(waits)
    found |= {"settings": {key: str(value) for key, value in vars(given).items()}, "hardware": facts.hardware()}
    (given.out / "neighbours.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console.print(_table(waits))
    return UNFAIR if any(ratio > MOST for ratio in found["ratios"].values()) else FAIR  # type: ignore[attr-defined]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.neighbours",
        description="How long one tenant's first token takes alone, and beside another one's flood of small requests, "
        "prompts of a megabyte, and 400 streams at once.",
    )
    parser.add_argument("--requests", type=int, default=30, help="of the victim, one after the other, in each part")
    parser.add_argument("--out", type=Path, default=Path("runs/neighbours"), help="folder for neighbours.json, logs")
    return parser.parse_args(arguments)


def _profile(out: Path, **keys: str) -> str:
    """Two tenants with a key each, of one weight."""
    file = (out / "keys").resolve()
    file.unlink(missing_ok=True)
    file.touch(0o600)
    file.write_text("".join(f"{name} {hashed(key)}\n" for name, key in keys.items()))
    path = out / "neighbours.toml"
    path.write_text(PROFILE.format(keys=file))
    return str(path)


@contextmanager
def _attacked(server: Launched, key: str, way: str) -> Iterator[None]:
    if way == ALONE:
        yield
        return
    words = [sys.executable, "-m", "loadtest.neighbours.attack", server.front_grpc, way]
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


def _first_tokens(server: Launched, key: str, count: int) -> list[float]:
    """Seconds. Who is refused asks again: that is part of the wait."""
    waits = []
    with Client(server.front_grpc, timeout=120, headers={"authorization": f"Bearer {key}"}) as client:
        for _ in range(count):
            began = time.monotonic()
            while True:
                try:
                    with client.stream(QUESTION, max_tokens=4, min_tokens=4) as stream:
                        next(stream)
                        waits.append(time.monotonic() - began)
                        for _chunk in stream:
                            pass
                    break
                except Overloaded as refusal:
                    time.sleep(min(refusal.retry_after or 0.1, 1.0))
            time.sleep(PAUSE)
    return waits


def _found(waits: dict[str, list[float]]) -> dict[str, object]:
    alone = statistics.median(waits[ALONE])
    medians = {way: statistics.median(times) for way, times in waits.items()}
    return {
        "median_s": medians,
        "worst_s": {way: max(times) for way, times in waits.items()},
        "ratios": {way: median / alone for way, median in medians.items()},
    }


def _table(waits: dict[str, list[float]]) -> Table:
    made = Table("beside", "median s", "worst s", "times alone", title="the victim's first token")
    alone = statistics.median(waits[ALONE])
    for way, times in waits.items():
        median = statistics.median(times)
        made.add_row(way, f"{median:.3f}", f"{max(times):.3f}", f"{median / alone:.1f}")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
