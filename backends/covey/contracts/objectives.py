"""Classes of latency objectives: makes an `Objective` from a profile's entries and a request's fields.

    "interactive:1.2x:500"   1.2 times the baseline's time per token, and 500 ms to the first token
    "batch:150:-"            150 ms per token, and any time to the first token

The baseline is the measured time per token of one request that decodes plainly on an idle server.

A request carries its objective (`Request.objective`). `requests/scheduler.py` orders requests by it and limits the
prompt tokens of a pass; `planner/standing.py` tells selectors how well each row keeps it. At the end `judge` says
whether it was met (`text/streaming.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from covey.contracts.types import Attainment, Objective

ENTRY = r"[A-Za-z][\w-]*:(-|0*[1-9]\d*(\.\d+)?x?|0*\.\d*[1-9]\d*x?):(-|0*[1-9]\d*(\.\d+)?)"
CLASSES = ("interactive:1.2x:500", "chat:50:1000", "batch:150:15000")


@dataclass(frozen=True, slots=True)
class SloClass:
    """The values of one entry. `tpot` is in seconds, or in baselines if `relative`."""

    name: str
    ttft: float
    tpot: float
    relative: bool

    @classmethod
    def read(cls, entry: str) -> SloClass:
        """Read the class from an entry that `ENTRY` matches."""
        name, tpot, ttft = entry.split(":")
        relative = tpot.endswith("x")
        return cls(name, _seconds(ttft), float(tpot[:-1]) if relative else _seconds(tpot), relative)


class Classes:
    """The classes of one deployment, and its baseline. Any thread may ask."""

    def __init__(self, entries: Iterable[str] = (), baseline: Callable[[], float | None] = lambda: None) -> None:
        """`entries` add to `CLASSES` or replace classes of the same name. `baseline` returns seconds per token, None
        until they are known."""
        self._by_name = {each.name: each for each in map(SloClass.read, (*CLASSES, *entries))}
        self._baseline = baseline

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def objective(self, name: str, ttft_ms: float, tpot_ms: float) -> Objective:
        """Return the objective of the class; "" is no class. A request's own numbers replace the class's unless they
        are 0."""
        slo_class = self._by_name.get(name, SloClass("", math.inf, math.inf, relative=False))
        tpot = tpot_ms / 1000 or self._tpot(slo_class)
        return Objective(name, ttft_ms / 1000 or slo_class.ttft, math.inf if tpot is None else tpot, tpot is not None)

    def targets(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the classes' current objectives as gauges, as far as they are known."""
        for each in self._by_name.values():
            for of, seconds in (("ttft", each.ttft), ("tpot", self._tpot(each))):
                if seconds is not None and seconds < math.inf:
                    yield "covey_slo_target_seconds", {"slo_class": each.name, "of": of}, seconds

    def _tpot(self, slo_class: SloClass) -> float | None:
        if not slo_class.relative:
            return slo_class.tpot
        baseline = self._baseline()
        return None if baseline is None else slo_class.tpot * baseline


def judge(objective: Objective, ttft: float | None, tpot: float | None) -> Attainment:
    """Return the attainment of a complete answer. An answer of one token has no time between tokens and meets any
    TPOT."""
    if (ttft or 0.0) > objective.ttft or (tpot or 0.0) > objective.tpot:
        return Attainment.MISSED
    return Attainment.MET if objective.measured else Attainment.UNKNOWN


def _seconds(text: str) -> float:
    """Return the milliseconds in `text` as seconds; "-" is infinite."""
    return math.inf if text == "-" else float(text) / 1000
