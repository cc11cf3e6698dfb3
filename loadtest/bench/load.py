"""Measures policies against fixed depths in a closed loop: so many callers, each asking again when its last answer is
complete.

One run, entrants in an order drawn anew each time, requests the same for all. The best of `off` and `fixed:k` is picked
on odd repetitions and compared on even ones, then the other way round; of a single repetition the best is picked on the
very runs it is compared on, which flatters it. All have the same single drafter.

`off` and `fixed:k` are settings of a request and use the server of policy `covey`, which does not learn from them. Each
other policy has a server of its own, so that it keeps what it has learnt while the others have their turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from covey.contracts.types import JsonDict
from loadtest.bench import workload
from loadtest.bench.derive import drafting, with_drafters
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import COVEY, DEPTHS, LEARNERS, OFF, PolicyRuns, fixed, shown, take_turns
from loadtest.bench.session import Session
from loadtest.bench.work import Ask

CONCURRENCIES, QUICK_CONCURRENCIES = (1, 2, 4, 8, 16, 32), (1, 4)
REQUESTS = {1: 5, 2: 8, 4: 14, 8: 24, 16: 40, 32: 72}
REPETITIONS = 6
QUICK_DEPTHS, QUICK_LEARNERS = (3,), (COVEY,)
SHORTEST, LONGEST = 16, 128  # output tokens
TEMPERATURE = 1.0  # greedy text of small models loops, and loops are easy to draft
WARM_UP = (1, 4, 16, 32)  # callers; what a policy must have seen before it is compared


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured = PolicyRuns()
    session.summarise = measured.summary
    quick = session.wanted.quick
    repetitions = session.repetitions(REPETITIONS)
    with line_up(session) as entrants:
        warm_up(session, entrants)
        concurrencies = QUICK_CONCURRENCIES if quick else CONCURRENCIES
        requests = {concurrency: REQUESTS[concurrency] for concurrency in concurrencies}
        take_turns(session, measured.runs, entrants, requests, asks, repetitions)


@contextmanager
def line_up(session: Session) -> Iterator[list[OverTriton]]:
    """Yield entrants on servers that are up; they end with the context."""
    wanted = session.wanted
    settings = drafting(wanted.profile)
    drafter = settings.speculation.drafters[0]
    session.notes |= {"drafter": drafter, "temperature": TEMPERATURE, "output_tokens": [SHORTEST, LONGEST]}
    quick = wanted.quick
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for policy in QUICK_LEARNERS if quick else LEARNERS:
            path = with_drafters(settings, folder / f"{policy}.toml", (drafter,), policy=policy)
            servers[policy] = stack.enter_context(session.server(wanted.options(path)))
        static = (OFF, *map(fixed, QUICK_DEPTHS if quick else DEPTHS))
        entrants = [OverTriton(servers[COVEY], each, stream=True, settings={"speculation": each}) for each in static]
        entrants += [OverTriton(server, policy, stream=True) for policy, server in servers.items()]
        yield entrants


def asks(count: int, seed: int) -> list[Ask]:
    """Return requests of mixed domains, the same for every entrant."""
    mixed = workload.mixed(count, shortest=SHORTEST, longest=LONGEST, seed=seed)
    return [replace(ask, temperature=TEMPERATURE) for ask in mixed]


def warm_up(session: Session, entrants: Sequence[OverTriton]) -> None:
    """Have every entrant answer something; those that learn, so much that they know what a round costs."""
    steps = [(f"warming up: {each.name} at {callers}", (each, callers)) for each in entrants for callers in WARM_UP]
    for entrant, callers in session.each(steps):
        learns = entrant.name in LEARNERS and not session.wanted.quick
        entrant.run(asks(callers * (2 if learns else 1), 0), callers, tenant=f"warm-up {entrant.name}")


def show(result: JsonDict, console: Console) -> None:
    points: JsonDict = result["points"]
    if points:
        console.print(shown("Closed loop, tokens per second", points))
