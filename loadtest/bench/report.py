"""Makes tables of results. Knows no bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench.statistics import Spread

V = TypeVar("V")


def number(value: object, digits: int = 2) -> str:
    """Return a number, or the median in the JSON of `as_json`, as text; a dash if nothing was measured."""
    value = value.get("median") if isinstance(value, Mapping) else value
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else "-"


def between(found: Mapping[str, Any] | None, digits: int = 2) -> str:
    """Return a median and its interval as text; a dash where there is none."""
    if not found:
        return "-"
    low, high = found["interval"]
    return f"{found['median']:.{digits}f} ({low:.2f} to {high:.2f})"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def grid(title: str, columns: Mapping[str, Mapping[str, object]], digits: int = 2) -> Table:
    """Return a table of numbers, with a column for each name in `columns` and a row for each name that one of them
    has."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(number(column.get(name), digits) for column in columns.values())] for name in names]
    return table(title, ["", *columns], rows)


def turned(rows: Mapping[str, Mapping[str, V]]) -> dict[str, dict[str, V]]:
    """Return the columns of a table that is given by its rows."""
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return {name: {row: cells[name] for row, cells in rows.items() if name in cells} for name in names}


def spreads(samples: Mapping[str, Sequence[float]]) -> JsonDict:
    """Return the spread of each sample as JSON."""
    return {name: as_json(Spread.of(values)) for name, values in samples.items()}


def as_json(spread: Spread | None) -> JsonDict | None:
    if spread is None:
        return None
    return {"median": spread.median, "low": spread.low, "high": spread.high, "repetitions": spread.count}
