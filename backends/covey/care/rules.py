"""The rules by which a process is ended: one for each way of hanging. `covey.care.silence` and `covey.care.calls`
have those of ports and calls.

A paused process answers nobody, and one that goes on after a while finds locks of Triton's that have timed out, which
ends all of tritonserver. A process under a debugger is in another state and left alone.

Triton waits for ever for a process that is loading, and so does all that is asked of the model meanwhile. Whoever asked
for a load whose process is ended is told that it failed.

The first thread of a model that nobody waits for within a known time takes Triton's requests, and mostly sleeps. Where
it never does and no request is answered either, it takes none any more. On a machine that does much else one that works
slowly never sleeps either, so it has to have run for a while, too. While a model loads that thread may compute for
long; where it neither sleeps nor touches new memory meanwhile, it runs in circles. The same holds of a server that
loads its first models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from covey.care.health import Health
from covey.care.processes import SERVER

PAUSED_SECONDS = 2.0
BUSY_SECONDS, RAN_SECONDS = 6.0, 1.5
CIRCLES_SECONDS = 60.0  # the same while a model loads
ASLEEP_SECONDS = 30.0  # a load may use no processor for so long: weights may come over a network
TARGET, DRAFTER, ORCHESTRATOR = "target", "drafter", "orchestrator"
JUDGED = (ORCHESTRATOR, "unary", "tokenizer")  # backends whose first thread only takes requests


@dataclass
class Loads:
    """The time that loads may take: `longest` as a whole and, by model, without a processor, which is doubled after
    each load that was ended until one succeeds."""

    longest: float
    patience: dict[str, float] = field(default_factory=dict)

    def bound(self, health: Health) -> float:
        return math.inf if health.name == SERVER else self.longest  # whoever starts it knows how long that may take

    def asleep(self, health: Health) -> float:
        return ASLEEP_SECONDS * self.patience.get(health.name, 1.0)

    def succeeded(self, model: str) -> None:
        self.patience.pop(model, None)

    def ended(self, model: str) -> None:
        self.patience[model] = 2 * self.patience.get(model, 1.0)


def broken(health: Health, loads: Loads) -> str:
    """Return what the process does that it may not, behind its name; "" if it breaks no rule. An answered request
    excuses one that never sleeps."""
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
