"""Classes of latency objectives: from a profile's entries and a request's fields to an `Objective`.

    "interactive:1.2x:500"   1.2 times the baseline's time per token, and 500 ms to the first token
    "batch:150:-"            150 ms per token, and no matter when the first one comes

The baseline is the measured time per token of one request that decodes plainly on an idle server.

A request's objective goes with it (`Request.objective`). `requests/scheduler.py` orders requests by it and bounds how
much of prompts a pass reads; `planner/standing.py` says for selectors how far each row is within it; and `judge` says
what became of it (`text/streaming.py`).
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
    """The values of one entry. `tpot` is in seconds, or in baselines where it is `relative`."""

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
        """`entries` add to `CLASSES`, or replace those of the same name. `baseline` gives seconds per token, or None
        where they are not known yet."""
        self._by_name = {each.name: each for each in map(SloClass.read, (*CLASSES, *entries))}
        self._baseline = baseline

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def objective(self, name: str, ttft_ms: float, tpot_ms: float) -> Objective:
        """Return the objective of a class, or of "", with a request's own numbers instead of the class's where they are
        not 0."""
        slo_class = self._by_name.get(name, SloClass("", math.inf, math.inf, relative=False))
        tpot = tpot_ms / 1000 or self._tpot(slo_class)
        return Objective(name, ttft_ms / 1000 or slo_class.ttft, math.inf if tpot is None else tpot, tpot is not None)

    def targets(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield what the classes ask for now, as far as it is known, as gauges."""
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
    """Return the attainment of an answer that came to its end. One of a single token has no time between tokens and
    meets any TPOT."""
    if (ttft or 0.0) > objective.ttft or (tpot or 0.0) > objective.tpot:
        return Attainment.MISSED
    return Attainment.MET if objective.measured else Attainment.UNKNOWN


def _seconds(text: str) -> float:
    """Return the seconds of so many milliseconds; "-" stands for any number of them."""
    return math.inf if text == "-" else float(text) / 1000
