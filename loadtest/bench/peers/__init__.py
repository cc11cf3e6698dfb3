"""Measures Covey beside what else would be run on this processor, OpenVINO GenAI and vLLM's build for CPUs, and beside
what the machine allows: same folders, same ids, in turns.

`--peer NAME=PYTHON` names a peer and the Python of an environment that has it; without one Covey is compared with the
limit alone. `--pair FOLDER` is an aligned pair (`covey.training aligned`), else the profile's target and first drafter
are served.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from covey.contracts.types import JsonDict
from loadtest.bench.peers import shown
from loadtest.bench.peers.asked import pythons
from loadtest.bench.peers.comparison import Comparison
from loadtest.bench.peers.line_up import line_up
from loadtest.bench.peers.measured import PeerRuns
from loadtest.bench.session import Session


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    pythons(session.wanted.peers)  # a name that nobody knows is told of before anything starts
    measured = PeerRuns()
    session.summarise = measured.summary
    with line_up(session) as cast:
        session.notes |= {
            "pair": {"target": Path(cast.pair.target).parent.name, "drafter": cast.pair.drafter},
            "weight_bytes": cast.weight_bytes,
            **cast.modes,
        }
        comparison = Comparison(session, measured, cast)
        comparison.invite()
        comparison.warm_up()
        comparison.turns()
        session.notes["peers"] = {name: peer.version for name, peer in cast.peers.items()}


def show(result: JsonDict, console: Console, _picture: Path) -> None:
    for table in shown.tables(result):
        console.print(table)
    for name, problem in result.get("failures", {}).items():
        console.print(f"{name}: {problem}", markup=False)
