"""The rules that tell that a process hangs and must be killed. Those of ports and calls are in
`covey.supervision.silence` and `covey.supervision.calls`.

Paused: the process answers no request. If it resumes later it finds that Triton's locks have timed out, which ends all
of tritonserver. A process under a debugger is in another state and is left alone.

Loading: Triton waits for ever for a process that is loading, and so do all requests to its model. After the process is
killed, Triton reports the load as failed.

Busy: the first thread of a `MOSTLY_IDLE` backend only takes Triton's requests and mostly sleeps. If it never sleeps
and no request is answered, it hangs. On a loaded machine a slow thread never sleeps either, so it must also have run
for a while. While a model loads, that thread may compute for long; if it then neither sleeps nor touches new memory, it
runs in circles. The same holds for a server that loads its first models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from covey.supervision.health import Health
from covey.supervision.processes import SERVER

PAUSED_SECONDS = 2.0
BUSY_SECONDS, RAN_SECONDS = 6.0, 1.5
CIRCLES_SECONDS = 60.0  # BUSY_SECONDS while a model loads
ASLEEP_SECONDS = 30.0  # a load may sleep this long, for example while it downloads weights
TARGET, DRAFTER, ORCHESTRATOR = "target", "drafter", "orchestrator"
MOSTLY_IDLE = (ORCHESTRATOR, "unary", "tokenizer")  # backends whose first thread only takes requests


@dataclass
class Loads:
    """How long loads may take: `longest` in all, and by model the factor on ASLEEP_SECONDS. The factor doubles after
    each load that was killed, until one succeeds."""

    longest: float
    patience: dict[str, float] = field(default_factory=dict)

    def bound(self, health: Health) -> float:
        return math.inf if health.name == SERVER else self.longest  # the launcher has its own timeout for a start

    def asleep(self, health: Health) -> float:
        return ASLEEP_SECONDS * self.patience.get(health.name, 1.0)

    def succeeded(self, model: str) -> None:
        self.patience.pop(model, None)

    def ended(self, model: str) -> None:
        self.patience[model] = 2 * self.patience.get(model, 1.0)


def broken(health: Health, loads: Loads) -> str:
    """Return which rule the process breaks, to be logged after its name, or "". A process that never sleeps is excused
    if it has answered a request."""
    if health.paused >= PAUSED_SECONDS:
        return f"has been paused for {health.paused:.1f} s"
    if health.loading and health.loading >= loads.bound(health):
        return f"has been loading for {health.loading:.1f} s"
    if health.asleep >= loads.asleep(health):
        return f"loads and has done nothing for {health.asleep:.1f} s"
    longest = CIRCLES_SECONDS if health.loading else BUSY_SECONDS
    if health.busy >= longest and health.ran >= RAN_SECONDS and not health.answers():
        return f"has run for {health.busy:.0f} s without an answer"
    return ""
