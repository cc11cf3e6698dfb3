"""Service levels and who asks for which. Measured from the client's side: nothing of them is sent to the server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from covey.errors import SettingError


@dataclass(frozen=True)
class Level:
    """A class of requests: met when the first token came within `ttft` and the others within `tpot` on average."""

    name: str
    weight: float
    ttft: float  # seconds
    tpot: float  # seconds a token

    def meets_ttft(self, ttft: float | None) -> bool:
        return ttft is not None and ttft <= self.ttft

    def meets_tpot(self, tpot: float | None) -> bool:
        """An answer of one token has no time between tokens, and meets any."""
        return tpot is None or tpot <= self.tpot


DEFAULT = (
    Level("interactive", 5.0, 0.5, 0.05),
    Level("standard", 3.0, 2.0, 0.1),
    Level("batch", 2.0, 10.0, 0.5),
)


def parse(texts: Sequence[str]) -> tuple[Level, ...]:
    """From `NAME:WEIGHT:TTFT_MS:TPOT_MS` each; the usual ones when there are none. Raises SettingError."""
    found = tuple(_one(text) for text in texts) or DEFAULT
    if len({level.name for level in found}) != len(found):
        raise SettingError("slo: each name may be given once")
    return found


def choose(levels: Sequence[Level], rng: random.Random) -> Level:
    return rng.choices(levels, [level.weight for level in levels])[0]


def _one(text: str) -> Level:
    name, *numbers = text.split(":")
    try:
        weight, ttft, tpot = (float(number) for number in numbers)
    except ValueError:
        raise SettingError(f"slo: got {text!r}, allowed: NAME:WEIGHT:TTFT_MS:TPOT_MS") from None
    if not name or not (weight > 0 and ttft > 0 and tpot > 0):
        raise SettingError(f"slo: got {text!r}, allowed: a name and three numbers above 0")
    return Level(name, weight, ttft / 1000, tpot / 1000)
