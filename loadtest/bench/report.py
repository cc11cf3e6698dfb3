"""Makes tables and pictures of results. Knows no bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench.statistics import Spread

V = TypeVar("V")
Points = list[tuple[float, float]]
STYLES: Mapping[str, Mapping[str, Any]] = {
    "covey": {"color": "black", "linewidth": 2.5, "zorder": 5},
    "oracle": {"color": "red", "linestyle": "--", "zorder": 6},
}
OTHERS: Mapping[str, Any] = {"linewidth": 1.2, "marker": ".", "markersize": 4}


@dataclass(frozen=True)
class Panel:
    """Describes one pair of axes and its lines by name; a name has one colour in all panels of a picture."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]


def line(values: Mapping[str, object]) -> Points:
    """Return the points of a line by x, which is a number by name; of what `as_json` makes the medians."""
    medians = {x: value.get("median") if isinstance(value, Mapping) else value for x, value in values.items()}
    return sorted((float(x), float(y)) for x, y in medians.items() if isinstance(y, (int, float)))


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels side by side, with one legend; without a point there is no picture."""
    names = list(dict.fromkeys(name for panel in panels for name, points in panel.lines.items() if points))
    if not names:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = {name: pyplot.get_cmap("tab20")(at % 20) for at, name in enumerate(names)}
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, squeeze=False, figsize=(5 * columns + 1.5, 3.3 * rows), layout="constrained"
    )
    for panel, axes in zip(panels, grid.flat):
        for name, points in panel.lines.items():
            if points:
                axes.plot(*zip(*points), label=name, **(OTHERS | {"color": colours[name]} | STYLES.get(name, {})))
        axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    known = {label: drawn for axes in grid.flat for drawn, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(known.values(), known.keys(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def number(value: object, digits: int = 2) -> str:
    """Return a number, or the median of what `as_json` makes, as text; a dash where nothing was measured."""
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
