"""Measures how near Covey comes to an accelerator's limits, part by part: `--part NAME` measures one alone.

Parts are measured one after the other: a failed one is reported, and the others go on. Engine, target and drafter run
in this process, over a synthetic pair (`covey_training.aligned`). To measure through the server, use
`loadtest.alternate` with a profile of such a pair. A number that needs a GPU is null without one.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Mapping

import torch
from rich.console import Console

from covey.contracts.types import JsonDict
from loadtest.bench.gpu import shown as gpu_shown
from loadtest.bench.gpu.ceilings import ceilings
from loadtest.bench.gpu.policies import speculation
from loadtest.bench.gpu.rig import Rig
from loadtest.bench.gpu.rounds import overhead, plain
from loadtest.bench.session import Session

Part = Callable[[Rig, JsonDict], None]  # writes each finding into the dictionary at once

PARTS: Mapping[str, Part] = {  # the short ones first
    "ceilings": ceilings,
    "plain": plain,
    "overhead": overhead,
    "speculation": speculation,
}


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    chosen = wanted.parts_of(PARTS)
    rig = Rig(session)
    failures: JsonDict = {}
    session.notes |= {
        "device": str(rig.device) if rig.on_gpu else wanted.device,
        "pair": {"size": rig.size},
        "dtype": str(rig.dtype).removeprefix("torch."),
        "failures": failures,
    }
    session.summarise = lambda: {name: rig.results.get(name) for name in PARTS}
    for name, part in PARTS.items():
        if name in chosen:
            _measure(rig, name, part, failures)


def _measure(rig: Rig, name: str, part: Part, failures: JsonDict) -> None:
    session, started = rig.session, time.monotonic()
    found = rig.results.setdefault(name, {})
    try:
        part(rig, found)
        session.console.print(f"{name}: measured in {time.monotonic() - started:.0f} s")
    except Exception as error:
        failures[name] = {
            "error": f"{type(error).__name__}: {error}"[:500],
            "trace": traceback.format_exc().splitlines()[-16:],
        }
        session.console.print(f"{name}: failed: {failures[name]['error']}", style="red", markup=False)
    gc.collect()
    if rig.on_gpu:
        torch.cuda.empty_cache()
    session.write()


def show(result: JsonDict, console: Console) -> None:
    """Show a table of each part that was measured."""
    for table in gpu_shown.tables(result):
        console.print(table)
    for name, failure in result["failures"].items():
        console.print(f"{name}: failed: {failure['error']}", markup=False)
