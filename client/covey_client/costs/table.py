"""Measured timings of one hardware and model pair: `profiles/costs/*.json`.

    {"covey_costs": 1, "name": "...", "origin": "how and on what they were measured",
     "verify":   [{"rows": 8, "tokens": 32, "seconds": 0.034}, ...],
     "overhead": [{"rows": 8, "seconds": 0.001}, ...],
     "draft":    {"draft_chat": [{"rows": 8, "depth": 4, "seconds": 0.006}, ...]},
     "switch":   {"draft_chat": [{"lag": 512, "rows": 32, "seconds": 0.0243}, ...]},
     "plain":    [{"rows": 8, "seconds": 0.02}, ...]}

`verify` and `draft` include the way there and back. Catch-up is in `switch`, not in `draft`. `plain` is a whole round
without drafts: each row's time per token; it may be missing. A planner takes the others as its first measurements. This
module does not know how they were obtained.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey_client import files

VERSION = 1
Cell = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Cells are (rows, tokens or depth, seconds) for verify and draft, (lag, rows, seconds) for switch."""

    name: str = ""
    origin: str = ""
    verify: tuple[Cell, ...] = ()
    overhead: tuple[tuple[int, float], ...] = ()
    draft: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    switch: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    plain: tuple[tuple[int, float], ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> CostTable:
        """Read a file. Raises OSError if it cannot be read, ValueError if it is no cost table of this version."""
        return cls.read(json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def read(cls, table: Any) -> CostTable:
        """Read what `plain_data` returned; raises ValueError as `load` does."""
        if not isinstance(table, dict) or table.get("covey_costs") != VERSION:
            raise ValueError(f"not a cost table of version {VERSION}")
        try:
            return cls(
                name=str(table["name"]),
                origin=str(table["origin"]),
                verify=_cells(table["verify"], "rows", "tokens"),
                overhead=_points(table["overhead"], "rows"),
                draft={name: _cells(cells, "rows", "depth") for name, cells in table["draft"].items()},
                switch={name: _cells(cells, "lag", "rows") for name, cells in table["switch"].items()},
                plain=_points(table.get("plain", []), "rows"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the file that `load` reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = json.dumps(self.plain_data(), indent=2)
        files.replace(path, re.sub(r"\{\s+([^{}]*?)\s+\}", _one_line, lines) + "\n")

    def plain_data(self) -> dict[str, Any]:
        """Return the table as plain data for JSON."""
        return {
            "covey_costs": VERSION,
            "name": self.name,
            "origin": self.origin,
            "verify": _listed(self.verify, "rows", "tokens"),
            "overhead": _listed(self.overhead, "rows"),
            "draft": {name: _listed(cells, "rows", "depth") for name, cells in self.draft.items()},
            "switch": {name: _listed(cells, "lag", "rows") for name, cells in self.switch.items()},
            "plain": _listed(self.plain, "rows"),
        }


def _points(points: list[dict[str, Any]], at: str) -> tuple[tuple[int, float], ...]:
    return tuple((first, seconds) for first, _, seconds in _cells(points, at, at))


def _cells(cells: list[dict[str, Any]], first: str, second: str) -> tuple[Cell, ...]:
    timings = tuple((int(cell[first]), int(cell[second]), float(cell["seconds"])) for cell in cells)
    for one, two, seconds in timings:
        if one < 1 or two < 1 or not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"{first} {one}, {second} {two}, seconds {seconds}: each must be positive")
    return timings


def _listed(cells: Iterable[tuple[float, ...]], *names: str) -> list[dict[str, float]]:
    return [dict(zip((*names, "seconds"), cell)) for cell in cells]


def _one_line(cell: re.Match[str]) -> str:
    return "{" + re.sub(r"\s+", " ", cell[1]) + "}"
