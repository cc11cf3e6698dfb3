"""The part `served` of the bench `gpu`: policies through the real server, where it is installed. The pair goes to a
folder first, which takes as many bytes as it has weights; target and drafter are processes of their own."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from covey import profile
from covey.server import StartError, installation
from covey.training.aligned import save
from covey.types import JsonDict
from loadtest.bench.derive import derive
from loadtest.bench.gpu.policies import REQUESTS, REQUESTS_OFF_GPU, compare, summary
from loadtest.bench.gpu.rig import Rig
from loadtest.bench.policies import COVEY, DEPTHS, OFF, Measured, fixed

REPETITIONS, FULL_REPETITIONS = 2, 6


def served(rig: Rig, found: JsonDict) -> None:
    """`off` and `fixed:k` are settings of requests, as in `load`: the policy does not learn from them."""
    session = rig.session
    try:
        installation.find(None)
    except StartError as error:
        found |= {"points": None, "why": str(error)}
        return
    from loadtest.bench.over_triton import OverTriton  # its libraries come with the server

    measured = Measured()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = session.wanted.options()
        with session.console.status("writing the pair"):
            path = save(
                replace(rig.loaded().pair, target=rig.view()),
                folder / "pair",
                options.repository_folder() / "target" / "1",
            )
        room = rig.room
        changed = derive(
            profile.load(str(path)),
            folder / "served.toml",
            scheduler={"max_running": room.running, "max_waiting": 4096, "token_budget": room.budget},
            target={"device": "cuda" if rig.on_gpu else "cpu"},
            drafter={"device": "cuda" if rig.on_gpu else "cpu"},
            speculation={"policy": COVEY},
        )
        server = stack.enter_context(session.server(replace(options, profile=str(changed), model="")))
        entrants = []
        for policy in (OFF, fixed(2)) if rig.small else (OFF, *map(fixed, DEPTHS)):
            entrants.append(OverTriton(server, policy, stream=True, settings={"speculation": policy}))
        entrants.append(OverTriton(server, COVEY, stream=True))
        for entrant in entrants:
            stack.callback(entrant.close)
        requests = REQUESTS if rig.on_gpu else REQUESTS_OFF_GPU
        try:
            compare(rig, measured, entrants, requests, session.repetitions(REPETITIONS, FULL_REPETITIONS))
        finally:
            found |= summary(measured) | {"on_gpu": rig.on_gpu}
