"""The server's own counters, read from its metrics port."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Mapping

LOOP = ("plan", "draft", "commit")  # phases of a round outside the call to the target
FLUSHED = 0.6  # seconds after which the server has brought its counters up to date
_LINE = re.compile(r"^(covey_\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Counters = Mapping[tuple[str, str], float]  # (family, value of its label `phase`, or "")


def read(url: str) -> dict[tuple[str, str], float]:
    """All `covey_*` series, summed over the labels that are not told apart here."""
    time.sleep(FLUSHED)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return parse(response.read().decode())


def parse(text: str) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            labels = dict(_LABEL.findall(match[2] or ""))
            key = (match[1], labels.get("phase", ""))
            found[key] = found.get(key, 0.0) + float(match[3])
    return found


def round_ms(before: Counters, after: Counters) -> dict[str, float]:
    """Mean milliseconds of a round by phase between two readings, and how many rounds there were."""

    def grew(family: str, phase: str = "") -> float:
        return after.get((family, phase), 0.0) - before.get((family, phase), 0.0)

    rounds = grew("covey_rounds_total")
    phases = {phase for family, phase in after if family == "covey_round_seconds_total"}
    means = {phase: 1000 * grew("covey_round_seconds_total", phase) / max(1.0, rounds) for phase in sorted(phases)}
    return means | {"rounds": rounds}


def loop_overhead_ms(phases: Mapping[str, float]) -> float:
    """A round outside the call to the target: what the loop itself costs. The call is the pass and its transport."""
    return sum(phases.get(phase, 0.0) for phase in LOOP)
