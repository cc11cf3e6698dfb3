"""`python -m loadtest.fuzz --requests 100000`. Exit status: 0 every answer was documented and nobody beside noticed, 1
not so, 2 could not run, 130 interrupted."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from covey import profile
from covey.errors import CoveyError
from covey.server import FREE, Options, Server, ServerDied
from covey.server.front import Front
from covey_client import Client, CoveyClientError
from loadtest.fuzz.attack import Attack

STOOD, FELL, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130
LOOK_SECONDS = 0.2
FRONT = "\n[front]\nrate = 1e6\nread_seconds = 2.0\n"  # the rate is not what is tried
BESIDE = {"max_tokens": 48, "min_tokens": 48, "temperature": 0.8, "seed": 5}


class Steady(threading.Thread):
    """A client that asks the same until stopped, and counts answers that are others."""

    def __init__(self, url: str) -> None:
        super().__init__(name="steady", daemon=True)
        self._client = Client(url, timeout=120)
        self._known = self._client.generate("Once upon a time", **BESIDE).tokens  # type: ignore[arg-type]
        self._stopped = threading.Event()
        self.right = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                found = self._client.generate("Once upon a time", **BESIDE).tokens  # type: ignore[arg-type]
                if found == self._known:
                    self.right += 1
                else:
                    self.wrong.append("a steady answer is another one")
            except CoveyClientError as error:
                self.wrong.append(f"a steady answer: {type(error).__name__}: {error}")

    def stop(self) -> None:
        self._stopped.set()
        self.join(120)
        self._client.close()


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    console = Console(stderr=True)
    given.out.mkdir(parents=True, exist_ok=True)
    named = given.out / "fuzz.toml"
    named.write_text(profile.find(given.profile).read_text(encoding="utf-8") + FRONT, encoding="utf-8")
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), FREE)
    try:
        with Server(Options(**ports, profile=str(named), drain_seconds=2.0)) as server:  # type: ignore[arg-type]
            front = Front(replace(server.options, front_http_port=FREE, front_grpc_port=FREE), server.deaths)
            front.start()
            try:
                found = _run(given, server, front, console)
            finally:
                front.stop()
    except (CoveyError, ServerDied, CoveyClientError) as error:
        console.print(f"fuzz: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    (given.out / "fuzz.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console.print_json(json.dumps(found))
    return FELL if found["problems"] else STOOD


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.fuzz",
        description="Send a server's front requests that no client would, beside one whose answers must stay the same.",
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=4, help="that send")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", default="emulated-7b", help="of the server that is started")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="folder for fuzz.json")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace, server: Server, front: Front, console: Console) -> dict[str, object]:
    steady, attack, pid, began = Steady(front.grpc_url), Attack(front.http_url, front.grpc_url), front.pid, time.time()
    steady.start()
    running = threading.Thread(target=attack.run, args=(given.requests, given.seed, given.threads), daemon=True)
    running.start()
    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=given.requests)
        while running.is_alive():
            front.check()
            server.check()
            progress.update(task, completed=attack.requests)
            time.sleep(LOOK_SECONDS)
    steady.stop()
    front.check()
    problems = attack.wrong + steady.wrong[:20]
    problems += [] if front.pid == pid else ["the front died"]
    return {
        "requests": attack.requests,
        "seconds": time.time() - began,
        "answers": dict(sorted(attack.answers.items())),
        "steady_answers": steady.right,
        "problems": problems,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
