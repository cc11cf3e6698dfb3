"""Who takes part in the benches `load` and `trace`: policies over real servers, all with the same single drafter.

`off` and `fixed:k` are settings of a request and use the server of policy `covey`, which does not learn from them. Each
other policy has a server of its own, so that it keeps what it has learnt while the others have their turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from covey import profile
from covey.errors import SettingError
from covey.server import Server
from loadtest.bench import workload
from loadtest.bench.derive import with_drafters
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import COVEY, DEPTHS, LEARNERS, OFF, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.work import Ask

QUICK_DEPTHS, QUICK_LEARNERS = (3,), (COVEY,)
SHORTEST, LONGEST = 16, 128  # output tokens
TEMPERATURE = 1.0  # greedy text of small models loops, and loops are easy to draft
WARM_UP = (1, 4, 16, 32)  # callers; what a policy must have seen before it is compared


@dataclass(frozen=True)
class Entrant:
    """A competitor and the server it asks."""

    name: str
    asks: OverTriton
    server: Server


@contextmanager
def line_up(session: Session) -> Iterator[list[Entrant]]:
    """Servers up and warm; they end with the context."""
    wanted = session.wanted
    settings = profile.load(wanted.profile)
    if not settings.speculation.drafters:
        raise SettingError(f"profile {wanted.profile}: speculation.drafters is empty; name one that has drafters")
    drafter = settings.speculation.drafters[0]
    session.notes |= {"drafter": drafter, "temperature": TEMPERATURE, "output_tokens": [SHORTEST, LONGEST]}
    quick = wanted.size == QUICK
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {}
        for policy in QUICK_LEARNERS if quick else LEARNERS:
            path = with_drafters(settings, folder / f"{policy}.toml", (drafter,), policy=policy)
            options = replace(wanted.options(), profile=str(path))
            servers[policy] = stack.enter_context(session.server(options))
        chosen = {OFF: {"speculation": OFF}}
        chosen |= {fixed(k): {"speculation": fixed(k)} for k in (QUICK_DEPTHS if quick else DEPTHS)}
        entrants = [_entrant(name, servers[COVEY], given) for name, given in chosen.items()]
        entrants += [_entrant(policy, server, {}) for policy, server in servers.items()]
        for entrant in entrants:
            stack.callback(entrant.asks.close)
        yield entrants


def asks(count: int, seed: int) -> list[Ask]:
    """Requests of mixed domains; the same for every entrant."""
    mixed = workload.mixed(count, shortest=SHORTEST, longest=LONGEST, seed=seed)
    return [replace(ask, temperature=TEMPERATURE) for ask in mixed]


def warm_up(session: Session, entrants: Sequence[Entrant]) -> None:
    """Every entrant answers something; those that learn, so much that they know what a round costs."""
    steps = [(entrant, callers) for entrant in entrants for callers in WARM_UP]
    for (entrant, callers), _ in zip(steps, session.steps([f"warming up: {e.name} at {c}" for e, c in steps])):
        learns = entrant.name in LEARNERS and session.wanted.size != QUICK
        entrant.asks.run(asks(callers * (2 if learns else 1), 0), callers, tenant=f"warm-up {entrant.name}")


def _entrant(name: str, server: Server, given: dict[str, str]) -> Entrant:
    asks_ = OverTriton(server, name, stream=True, settings=given)
    return Entrant(name, asks_, server)
