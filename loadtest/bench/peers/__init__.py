"""Measures Covey beside what else would be run on this processor, OpenVINO GenAI and vLLM's build for CPUs, and beside
what the machine allows: same folders, same ids, in turns.

`--peer NAME=PYTHON` names a peer and the Python of an environment that has it; without one Covey is compared with the
limit alone. `--pair FOLDER` is an aligned pair (`covey.training aligned`), else the profile's target and first drafter
are served. Parts, by `--part`: `compare`, with everybody; `waterfall`, Covey's plain decoding and the limit alone, from
whose turns `compare` fills its table too.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from covey.contracts.types import JsonDict
from loadtest.bench.peers import shown
from loadtest.bench.peers.asked import pythons
from loadtest.bench.peers.comparison import Comparison
from loadtest.bench.peers.line_up import Pair, line_up
from loadtest.bench.peers.measured import GREEDY, HOT, PeerRuns
from loadtest.bench.peers.texts import texts
from loadtest.bench.session import QUICK, Session

COMPARE, WATERFALL = "compare", "waterfall"
WATERFALL_CALLERS, QUICK_WATERFALL_CALLERS = (1, 16), (1, 4)


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    parts = wanted.parts_of((COMPARE, WATERFALL), usual=(COMPARE,))
    pythons(wanted.peers)  # a name that nobody knows is told of before anything starts
    measured = PeerRuns()
    session.summarise = measured.summary
    folder = wanted.pairs[0] if wanted.pairs else ""
    if COMPARE in parts:
        session.notes["texts"] = texts(session, Pair.of(session, folder))
    _turns(session, measured, folder, alone=COMPARE not in parts)


def _turns(session: Session, measured: PeerRuns, folder: str, *, alone: bool) -> None:
    with line_up(session, folder) as cast:
        session.notes |= {
            "pair": {"target": Path(cast.pair.target).parent.name, "drafter": cast.pair.drafter},
            **cast.modes,
        }
        session.notes["weight_bytes"] = cast.weight_bytes
        quick = session.wanted.size == QUICK
        callers = QUICK_WATERFALL_CALLERS if quick else WATERFALL_CALLERS
        comparison = Comparison(session, measured, cast, callers if alone else ())
        if not alone:
            comparison.invite()
        comparison.warm_up()
        comparison.turns((GREEDY,) if alone else (GREEDY, HOT))
        session.notes["peers"] = {name: peer.version for name, peer in cast.peers.items()}


def show(result: JsonDict, console: Console) -> None:
    for table in shown.tables(result):
        console.print(table)
    for name, problem in result.get("failures", {}).items():
        console.print(f"{name}: {problem}", markup=False)
