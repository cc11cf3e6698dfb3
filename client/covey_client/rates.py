"""Computes figures between two snapshots of the metrics port: rates and ratios. Fetches nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from covey_client.status import Sample


@dataclass(frozen=True)
class MetricsSnapshot:
    """The samples of the metrics port at one time, in seconds of any clock that does not jump."""

    at: float
    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum over the series that carry the labels; None if there is none."""
        found = [s.value for s in self.samples if s.name == name and _carries(s.labels, labels)]
        return sum(found) if found else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the metric's sums for each value of a label."""
        found: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name and label in sample.labels:
                found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
        return found


@dataclass(frozen=True)
class Span:
    """The time from one snapshot to a later one. Counters that fell were restarted, and count from zero."""

    before: MetricsSnapshot
    after: MetricsSnapshot

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at

    def grew(self, name: str, **labels: str) -> float | None:
        """Return how much a counter grew; None if the server does not have it."""
        now = self.after.value(name, **labels)
        return None if now is None else _growth(self.before.value(name, **labels) or 0.0, now)

    def rate(self, name: str, **labels: str) -> float | None:
        """Return the growth a second."""
        grown = self.grew(name, **labels)
        return None if grown is None or self.seconds <= 0 else grown / self.seconds

    def grew_by(self, name: str, label: str) -> dict[str, float]:
        earlier = self.before.by(name, label)
        return {key: _growth(earlier.get(key, 0.0), now) for key, now in self.after.by(name, label).items()}

    def ratio(self, numerator: str, denominator: str) -> float | None:
        """Return one counter's growth over another's; None while the latter stands still."""
        below = self.grew(denominator)
        return (self.grew(numerator) or 0.0) / below if below else None


def _growth(before: float, now: float) -> float:
    return now - before if now >= before else now


def _carries(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
