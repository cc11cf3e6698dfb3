"""Defines service levels and the requests that have them. The client measures them; with `--send-slo` the server is
told of them and schedules by them.

A level of a mix is one of the server's latency classes. The server's metrics port gives the objective of a class.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.contracts.errors import SettingError
from covey_client.rates import MetricsSnapshot


@dataclass(frozen=True)
class Level:
    """Describes a class of requests, which is met when the first token came within `ttft` and the others within `tpot`
    on average."""

    name: str
    weight: float
    ttft: float  # seconds
    tpot: float  # seconds a token
    slo_class: str = ""  # the server's name of it
    domain: str = ""  # of the own prompts; "": from the run's source

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that tell the server of it."""
        if self.slo_class:
            return {"slo_class": self.slo_class}
        return {"slo_ttft_ms": 1000 * self.ttft, "slo_tpot_ms": 1000 * self.tpot}

    def meets_ttft(self, ttft: float | None) -> bool:
        return ttft is not None and ttft <= self.ttft

    def meets_tpot(self, tpot: float | None) -> bool:
        """Return whether an answer is within `tpot`; one of a single token always is."""
        return tpot is None or tpot <= self.tpot


DEFAULT = (
    Level("interactive", 5.0, 0.5, 0.05),
    Level("standard", 3.0, 2.0, 0.1),
    Level("batch", 2.0, 10.0, 0.5),
)


MIX = (("copilot", "interactive", "code"), ("chat", "chat", "chat"), ("summary", "batch", "summarisation"))
MIX_TOKENS = "256:256"  # of each answer, unless it ends before: as in AdaServe's measurements


def mix(text: str) -> tuple[Level, ...]:
    """Return the levels of `COPILOT/CHAT/SUMMARY`, shares as in 60/20/20; one of 0 is left out. Raises SettingError."""
    shares = text.split("/")
    if len(shares) != len(MIX) or not all(share.isdecimal() for share in shares) or not sum(map(int, shares)):
        raise SettingError(f"mix: got {text!r}, allowed: COPILOT/CHAT/SUMMARY, shares as in 60/20/20")
    return tuple(
        Level(name, float(share), math.inf, math.inf, slo_class, domain)
        for share, (name, slo_class, domain) in zip(shares, MIX)
        if int(share)
    )


def as_served(level: Level, readings: Sequence[MetricsSnapshot]) -> Level:
    """Return the level with the server's objective for its class; without a limit if the server names none."""
    for reading in reversed(readings) if level.slo_class else ():
        found = [reading.value("covey_slo_target_seconds", slo_class=level.slo_class, of=of) for of in ("ttft", "tpot")]
        if any(found):
            ttft, tpot = (math.inf if seconds is None else seconds for seconds in found)
            return replace(level, ttft=ttft, tpot=tpot)
    return level


def parse(texts: Sequence[str]) -> tuple[Level, ...]:
    """Return the levels of `NAME:WEIGHT:TPOT_MS:TTFT_MS` each, or the usual ones. Raises SettingError."""
    found = tuple(_one(text) for text in texts) or DEFAULT
    if len({level.name for level in found}) != len(found):
        raise SettingError("slo: each name may be given once")
    return found


def choose(levels: Sequence[Level], rng: random.Random) -> Level:
    return rng.choices(levels, [level.weight for level in levels])[0]


def _one(text: str) -> Level:
    name, *numbers = text.split(":")
    try:
        weight, tpot, ttft = (float(number) for number in numbers)
    except ValueError:
        raise SettingError(f"slo: got {text!r}, allowed: NAME:WEIGHT:TPOT_MS:TTFT_MS") from None
    if not name or not (weight > 0 and ttft > 0 and tpot > 0):
        raise SettingError(f"slo: got {text!r}, allowed: a name and three numbers above 0")
    return Level(name, weight, ttft / 1000, tpot / 1000)
