"""Keeps a run as a folder with settings, and a line for each request and each look at the metrics port.

Lines are written as they come, so even a run that was cut short or killed can be reported.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from covey.contracts.errors import SettingError
from covey_client.rates import MetricsSnapshot
from covey_client.status import Sample
from loadtest.levels import Level, as_served

SETTINGS, REQUESTS, METRICS = "run.json", "requests.jsonl", "metrics.jsonl"


@dataclass(frozen=True)
class Record:
    """Describes one request as the client saw it. Times are in seconds, and None where there was none."""

    at: float  # when it was sent, after the start
    level: str
    topic: str
    outcome: str  # the server's finish reason, the name of an error, or `unfinished`
    error: str = ""
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    input_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    lag: float = 0.0  # delay of the load generator after the due time

    @property
    def failed(self) -> bool:
        return bool(self.error)

    @property
    def finished(self) -> bool:
        return not self.error and self.e2e is not None

    @property
    def end(self) -> float:
        return self.at + (self.e2e or 0.0)


@dataclass(frozen=True)
class RecordedRun:
    """Holds a run that has ended, completely or not."""

    folder: Path
    settings: dict[str, Any]
    levels: tuple[Level, ...]
    records: tuple[Record, ...]
    readings: tuple[MetricsSnapshot, ...] = field(default=())

    @property
    def seconds(self) -> float:
        """Return how long load was offered; for a killed run, until its last line."""
        ran = self.settings.get("ran_seconds")
        if ran is not None:
            return float(ran)
        return max([1.0, *(record.end for record in self.records), *(reading.at for reading in self.readings)])

    @property
    def complete(self) -> bool:
        return bool(self.settings.get("complete"))


class Recorder:
    """Writes one run's folder. One greenlet or thread at a time per call; calls do not interleave under gevent."""

    def __init__(self, folder: Path, settings: dict[str, Any], levels: tuple[Level, ...]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"out: {folder} cannot be made: {error.strerror}") from None
        self.folder = folder
        self._settings = settings | {"levels": [dataclasses.asdict(level) for level in levels]}
        self._requests: TextIO = (folder / REQUESTS).open("w", encoding="utf-8")
        self._metrics: TextIO = (folder / METRICS).open("w", encoding="utf-8")
        self._write_settings()

    def request(self, record: Record) -> None:
        self._line(self._requests, dataclasses.asdict(record))

    def reading(self, reading: MetricsSnapshot) -> None:
        samples = [[sample.name, dict(sample.labels), sample.value] for sample in reading.samples]
        self._line(self._metrics, {"at": reading.at, "samples": samples})

    def end(self, ran_seconds: float, complete: bool) -> None:
        """Close the run; `complete` if it ran as long as it was to."""
        self._settings |= {"ran_seconds": ran_seconds, "complete": complete}
        self._write_settings()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._metrics.close()

    def _line(self, file: TextIO, value: dict[str, Any]) -> None:
        file.write(json.dumps(value) + "\n")
        file.flush()

    def _write_settings(self) -> None:
        (self.folder / SETTINGS).write_text(json.dumps(self._settings, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> RecordedRun:
    """Read a run from its folder; a last line that was cut off is left out. Raises SettingError."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        records = tuple(Record(**row) for row in _lines(folder / REQUESTS))
        rows = _lines(folder / METRICS)
        readings = tuple(MetricsSnapshot(row["at"], tuple(Sample(*each) for each in row["samples"])) for row in rows)
        levels = tuple(as_served(Level(**level), readings) for level in settings.pop("levels"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{folder} holds no run of this load test: {error}") from None
    return RecordedRun(folder, settings, levels, records, readings)


def unused(folder: Path) -> Path:
    """Return the folder of a new run. Raises SettingError if it already has a run, which would be lost."""
    if (folder / SETTINGS).exists():
        raise SettingError(f"name: {folder} holds a run already; name another one, or remove it")
    return folder


def called(other: RecordedRun, run: RecordedRun) -> str:
    """Return the name of the run to compare with: `plain` if only it had no drafts, else `earlier`."""
    off = [each.settings.get("speculation") == "off" for each in (other, run)]
    return "plain" if off == [True, False] else "earlier"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    for index, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if index < len(lines) - 1:
                raise
