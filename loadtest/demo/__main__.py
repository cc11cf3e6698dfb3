"""Runs the demo, `python -m loadtest.demo [STEP ...]`. The exit status is 0 if it is done, 1 if a text differed or a
step failed, and 130 if it was interrupted."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from covey.contracts import profile
from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict
from covey.server import Server
from covey_client import CoveyClientError, interruption
from loadtest.bench.derive import derive
from loadtest.bench.session import Session, Wanted, served
from loadtest.charts import Chart
from loadtest.demo import page, steps
from loadtest.demo.stage import Stage
from loadtest.demo.steps import Shown
from loadtest.questions import Prompts

ALL = "all"
BUNDLED, EMULATED = "bundled", "emulated"
DEVICES = {
    BUNDLED: "this machine, the bundled model",
    EMULATED: "an emulated 24 GB card (7B target, 0.5B drafter): times are slept, a hash makes the texts",
}
FORESEEN = (CoveyError, CoveyClientError)  # errors whose messages are clear without a traceback
FEW_PLACES = 16  # requests that run at once, so that others wait


class StepFailed(Exception):
    """Names the step; its cause is what happened."""


@dataclass(frozen=True)
class Step:
    title: str
    server: str
    play: Callable[[Stage], Shown]
    quick: float = 0.4  # with --quick: the share of its seconds that still shows the same


STEPS = {
    "depth": Step("Depth follows load", BUNDLED, steps.depth),
    "drafters": Step("Drafters follow the text", BUNDLED, steps.drafters),
    "urgent": Step("An urgent class is held while others wait", EMULATED, steps.urgent, quick=1.0),
    "death": Step("A drafter is killed and comes back", BUNDLED, steps.death),
}


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    interruption.by_signals()
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    chosen = served()
    wanted = Wanted(given.out / "demo.json", given.quick, profile=chosen["profile"], model=chosen["model"])
    session = Session("demo", wanted, console)
    found: dict[str, JsonDict] = {}
    charts: dict[str, Sequence[Chart]] = {}
    session.summarise = lambda: {"steps": {name: found[name] for name in STEPS if name in found}}
    status, ended = 0, ""
    asked = {given.steps} if isinstance(given.steps, str) else set(given.steps)
    try:
        for server in DEVICES:
            chosen = [name for name in STEPS if {ALL, name} & asked and STEPS[name].server == server]
            if chosen:
                _serve(session, server, chosen, found, charts)
    except KeyboardInterrupt:
        session.interrupted = True
        status, ended = 130, "The run was interrupted."
        console.print("interrupted: the page has the charts so far")
    except Exception as error:  # of any kind: the page has the charts so far
        if not isinstance(error.__cause__ if isinstance(error, StepFailed) else error, FORESEEN):
            console.print_exception()
        status, ended = 1, f"The run ended early. {_said(error)}"
        console.print(f"demo: {ended}", style="red", markup=False, soft_wrap=True)
    session.notes["ended"] = ended
    result = session.write()
    print(page.write(given.out, result["steps"], charts, ended))
    return 1 if any(each["differ"] for each in found.values()) else status


def _serve(
    session: Session, server: str, names: Sequence[str], found: dict[str, JsonDict], charts: dict[str, Sequence[Chart]]
) -> None:
    """Play these steps on one server, and keep their findings and charts."""
    with tempfile.TemporaryDirectory() as folder:
        path = _profile(session, server, Path(folder) / "demo.toml")
        wanted = replace(session.wanted, profile=str(path), model="" if server == EMULATED else session.wanted.model)
        known = wanted.prompts()
        with session.server(wanted.options()) as running:
            for name in names:
                found[name], charts[name] = _played(session, running, name, known)


def _played(session: Session, server: Server, name: str, known: Prompts) -> tuple[JsonDict, Sequence[Chart]]:
    step = STEPS[name]
    try:
        with Stage(name, server, session, known, step.quick if session.wanted.quick else 1.0) as stage:
            shown = step.play(stage)
            differ = stage.compared()
        return _told(session, name, shown, len(stage.answers), differ), shown.charts
    except Exception as error:
        raise StepFailed(f"Step {name}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, (StepFailed, *FORESEEN)) else f"{type(error).__name__}: {error}"


def _told(session: Session, name: str, shown: Shown, answers: int, differ: int) -> JsonDict:
    step = STEPS[name]
    command = f".venv/bin/python -m loadtest.demo {name}"
    texts = f"{answers} texts, {differ or 'none'} different from plain decoding's."
    style = "red" if differ else None
    session.console.print(f"{name}: {shown.sentence} {texts}", highlight=False, soft_wrap=True, style=style)
    return {
        "title": step.title,
        "devices": DEVICES[step.server],
        "command": command,
        "sentence": shown.sentence,
        "texts": texts,
        "answers": answers,
        "differ": differ,
    }


def _profile(session: Session, server: str, path: Path) -> Path:
    if server == EMULATED:
        return derive(profile.load("emulated-7b"), path, scheduler={"max_running": FEW_PLACES})
    return derive(profile.load(session.wanted.profile), path)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    known = "\n".join(f"  {name:10} {step.title}" for name, step in STEPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.demo",
        description=f"Covey at work, as charts drawn from running servers.\n\nsteps:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("steps", nargs="*", default=ALL, choices=(ALL, *STEPS), metavar="STEP")
    parser.add_argument("--quick", action="store_true", help="shorter phases, but for urgent")
    parser.add_argument("--out", type=Path, default=Path("runs", "demo"), help="folder for index.html and demo.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
