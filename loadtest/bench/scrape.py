"""Reads the server's own counters from its metrics port."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping

from covey_client.rates import MetricsSnapshot, Span
from covey_client.status import parse

LOOP = ("plan", "draft", "commit")  # phases of a round outside the call to the target
FLUSHED = 0.6  # seconds after which the server has brought its counters up to date


def read(url: str) -> MetricsSnapshot:
    """Read all `covey_*` series."""
    time.sleep(FLUSHED)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return MetricsSnapshot(time.monotonic(), parse(response.read().decode()))


def round_ms(span: Span) -> dict[str, float]:
    """Return the mean milliseconds of a round by phase, and how many rounds there were."""
    rounds = span.grew("covey_rounds_total") or 0.0
    seconds = span.grew_by("covey_round_seconds_total", "phase")
    return {phase: 1000 * seconds[phase] / max(1.0, rounds) for phase in sorted(seconds)} | {"rounds": rounds}


def loop_overhead_ms(phases: Mapping[str, float]) -> float:
    """Return the milliseconds of a round outside the call to the target, which is the pass and its transport."""
    return sum(phases.get(phase, 0.0) for phase in LOOP)
