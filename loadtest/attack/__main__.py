"""Attacks a server, `python -m loadtest.attack SCENARIO`. The exit status is 0 if the server passed, 1 if it failed,
2 if the attack could not run and 130 if it was interrupted."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict
from covey_client import CoveyClientError, interruption
from loadtest.attack import faults, fuzz
from loadtest.bench import facts

STOOD, FELL, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Scenario:
    """Names an attack. `run` returns its findings; any entry in their `problems` fails the attack."""

    about: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], JsonDict]


SCENARIOS = {
    "faults": Scenario(
        "Kill, pause and spin processes of a real server at random times under load, fill its shared memory and the "
        "folder of what it keeps; compare every answer. Full places need a superuser.",
        faults.declare,
        faults.run,
    ),
    "fuzz": Scenario(
        "Send a server's front requests that no client would, while other clients' answers must stay the same, and "
        "measure how much longer their first tokens take.",
        fuzz.declare,
        fuzz.run,
    ),
}


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    interruption.by_signals()
    console = Console(stderr=True)
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        found = SCENARIOS[given.scenario].run(given, console)
    except (CoveyError, CoveyClientError, OSError) as error:
        console.print(f"{given.scenario}: {error}", style="red", markup=False)
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    found |= {
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "settings": {key: str(value) for key, value in vars(given).items()},
        "hardware": facts.hardware(),
        "versions": facts.versions(),
    }
    (given.out / f"{given.scenario}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for problem in found["problems"]:
        console.print(f"{given.scenario}: {problem}", style="red", markup=False)
    return FELL if found["problems"] else STOOD


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.attack", epilog="Ctrl-C ends a run without a verdict.")
    parts = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for name, scenario in SCENARIOS.items():
        part = parts.add_parser(name, help=scenario.about.partition(",")[0], description=scenario.about)
        scenario.declare(part)
        part.add_argument("--seed", type=int, default=1)
        part.add_argument("--out", type=Path, default=Path("runs", name), help=f"folder for {name}.json and the logs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
