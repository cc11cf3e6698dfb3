"""Shapes of load give the times of requests: `parse("poisson:4")` is one. Knows of prompts only a trace's lengths.

| shape | arrivals |
|---|---|
| `closed:N` | N users, each asking again as soon as it is answered |
| `poisson:RATE` | RATE requests a second on average, independent of one another |
| `peaks:LOW,HIGH` | LOW a second, rising to HIGH at a quarter and at three quarters of the run |
| `azure:FILE` | Azure's CSV: TIMESTAMP, ContextTokens, GeneratedTokens |
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from covey.contracts.errors import SettingError

MOST = 10_000  # of any number of a shape: this process makes the load
UNREADABLE = (KeyError, ValueError, TypeError, OSError, EOFError, csv.Error)
SHAPES = (
    "closed:N",
    "poisson:RATE",
    "peaks:LOW,HIGH",
    "azure:FILE",
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Gives a request's time and its lengths in a trace. The prompt source chooses lengths that are 0."""

    at: float  # seconds after the start
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Shape:
    """Describes offered load. Arrivals of open shapes do not depend on the server; a closed shape has users instead."""

    users: int = 0  # of a closed shape

    def arrivals(self, seconds: float, rng: random.Random) -> Iterator[Arrival]:  # noqa: ARG002 - for open ones
        """Yield an open shape's arrivals in order, none later than `seconds`."""
        return iter(())


@dataclass(frozen=True, kw_only=True)
class Varying(Shape):
    """Is a Poisson process whose rate is a function of the time and of the run's length."""

    rate: Callable[[float, float], float]
    highest: float

    def arrivals(self, seconds: float, rng: random.Random) -> Iterator[Arrival]:
        at = 0.0
        while (at := at + rng.expovariate(self.highest)) <= seconds:
            if rng.random() * self.highest <= self.rate(at, seconds):
                yield Arrival(at)


@dataclass(frozen=True, kw_only=True)
class Trace(Shape):
    """Has arrivals that were recorded somewhere."""

    recorded: Sequence[Arrival]

    def arrivals(self, seconds: float, rng: random.Random) -> Iterator[Arrival]:  # noqa: ARG002 - nothing is drawn
        return itertools.takewhile(lambda arrival: arrival.at <= seconds, self.recorded)

    def scaled(self, rate: float | None, lengths: float) -> Trace:
        """Return the same trace with its times stretched to `rate` requests a second on average (None: as they are) and
        its lengths multiplied."""
        stretch = 1.0
        if rate is not None and self.recorded[-1].at > 0:
            stretch = len(self.recorded) / self.recorded[-1].at / rate
        scaled = [
            replace(
                arrival,
                at=arrival.at * stretch,
                input_tokens=max(1, round(arrival.input_tokens * lengths)),
                output_tokens=max(1, round(arrival.output_tokens * lengths)),
            )
            for arrival in self.recorded
        ]
        return Trace(recorded=scaled)


def parse(text: str, *, rate: float | None = None, lengths: float = 1.0) -> Shape:
    """Return the shape of that description; `rate` and `lengths` scale traces. Raises SettingError."""
    kind, _, rest = text.partition(":")
    if kind == "azure" and rest:
        return Trace(recorded=read_azure(Path(rest))).scaled(rate, lengths)
    numbers = _numbers(text, rest)
    if not all(0 <= number <= MOST for number in numbers):  # NaN is in no range
        raise SettingError(f"shape: got {text!r}, allowed: numbers up to {MOST:,}, users and requests a second")
    if kind == "closed" and len(numbers) == 1 and numbers[0] >= 1 and numbers[0].is_integer():
        return Shape(int(numbers[0]))
    if kind == "poisson" and len(numbers) == 1 and numbers[0] > 0:
        return Varying(rate=lambda _at, _seconds: numbers[0], highest=numbers[0])
    if kind == "peaks" and len(numbers) == 2 and numbers[0] <= numbers[1] > 0:
        low, high = numbers
        rise = high - low
        return Varying(rate=lambda at, seconds: low + rise * math.sin(2 * math.pi * at / seconds) ** 4, highest=high)
    raise SettingError(f"shape: got {text!r}, allowed: {', '.join(SHAPES)}")


def read_azure(path: Path) -> list[Arrival]:
    """Read rows of TIMESTAMP, ContextTokens, GeneratedTokens; the first is at 0."""
    try:
        with path.open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        stamps = [_seconds(row["TIMESTAMP"]) for row in rows]
        lengths = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
    except UNREADABLE as error:
        raise SettingError(f"{path} is no trace in Azure's format: {error!r}") from None
    arrivals = [Arrival(at, *length) for at, length in zip(stamps, lengths)]
    if not arrivals:
        raise SettingError(f"{path} holds no request")
    ordered = sorted(arrivals, key=lambda arrival: arrival.at)
    return [replace(arrival, at=arrival.at - ordered[0].at) for arrival in ordered]


def _seconds(stamp: str) -> float:
    whole, _, fraction = stamp.partition(".")  # Azure writes seven digits, datetime reads six
    return datetime.fromisoformat(whole).timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _numbers(text: str, listed: str) -> list[float]:
    try:
        return [float(part) for part in listed.split(",")]
    except ValueError:
        raise SettingError(f"shape: got {text!r}, allowed: {', '.join(SHAPES)}") from None
