"""Makes tables and pictures of results. Knows no bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench.statistics import Spread

V = TypeVar("V")
MOST_LINES = 8  # that a reader can tell apart
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a800")  # for all eyes
FAINT: dict[str, object] = {"color": "0.85", "linewidth": 0.8, "zorder": 1}
SOUGHT = ("covey", "oracle", "off", "general", "nightjar")


@dataclass(frozen=True)
class Panel:
    """Describes one pair of axes and its lines by name."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False
    from_zero: bool = True
    log_y: bool = False
    marks: Sequence[tuple[float, str]] = ()  # places on the x axis with their names


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


def line(values: Mapping[str, object]) -> list[tuple[float, float]]:
    """Return the points of a line by x, which is a number by name; of what `as_json` makes the medians."""
    medians = {x: value.get("median") if isinstance(value, Mapping) else value for x, value in values.items()}
    return sorted((float(x), float(y)) for x, y in medians.items() if isinstance(y, (int, float)))


def spreads(samples: Mapping[str, Sequence[float]]) -> JsonDict:
    """Return the spread of each sample as JSON."""
    return {name: as_json(Spread.of(values)) for name, values in samples.items()}


def as_json(spread: Spread | None) -> JsonDict | None:
    if spread is None:
        return None
    return {"median": spread.median, "low": spread.low, "high": spread.high, "repetitions": spread.count}


def panels(path: Path, title: str, shown: Sequence[Panel]) -> None:
    """Draw panels side by side. A name has one colour in all of them; covey is drawn thick and on top. Of many names
    the few that matter most have colours, and the others are faint. A panel that shares no name with the first has
    colours and a legend of its own. A line whose panel says all of it has the name "". A line without points is not
    there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [replace(panel, lines={name: found for name, found in panel.lines.items() if found}) for panel in shown]
    apart = [panel for panel in shown[1:] if not panel.lines.keys() & shown[0].lines.keys()]
    names = list(dict.fromkeys(name for panel in shown if panel not in apart for name in panel.lines))
    main = names if len(names) <= MOST_LINES else _foremost(names, shown[0])
    colours = dict(zip(main, cycle(COLOURS)))
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = pyplot.figure(figsize=(5 * columns + 1, 3.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel, plot in zip(shown, grid.flat):
        of = dict(zip(panel.lines, cycle(COLOURS))) if panel in apart else colours
        for name, points in panel.lines.items():
            plot.plot(*zip(*points), **(_style(name, of[name]) | {"label": name} if name in of else FAINT))
        if panel in apart and any(panel.lines):
            plot.legend(fontsize=8)
        for at, text in panel.marks:
            plot.axvline(at, color="0.6", linewidth=0.8, zorder=0)
            place = {"xycoords": plot.get_xaxis_transform(), "xytext": (2, -3), "textcoords": "offset points"}
            behind = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5}
            plot.annotate(text, (at, 1), **place, rotation=90, va="top", fontsize=8, color="0.2", bbox=behind)
        plot.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        _scale(plot, panel)
    for plot in grid.flat[len(shown) :]:
        plot.set_visible(False)
    plots = [plot for panel, plot in zip(shown, grid.flat) if panel not in apart]
    known = {label: line for plot in plots for line, label in zip(*plot.get_legend_handles_labels())}
    if known:
        figure.legend(known.values(), known.keys(), loc="outside right center", fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _foremost(names: Sequence[str], panel: Panel) -> list[str]:
    """Return the names that a reader looks for, and those that are highest in a panel, in the order given."""
    heights = {name: sum(y for _, y in points) / len(points) for name, points in panel.lines.items()}
    wanted = [name for name in SOUGHT if name in names]
    wanted += sorted((name for name in names if name not in wanted), key=lambda name: -heights.get(name, 0.0))
    return [name for name in names if name in wanted[: MOST_LINES - 1]]


def _scale(plot: Any, panel: Panel) -> None:
    if panel.log_x:
        _double(plot, [x for points in panel.lines.values() for x, _ in points])
    if panel.log_y:
        plot.set_yscale("log")
    elif panel.from_zero:
        plot.set_ylim(bottom=0)
    plot.grid(alpha=0.3)


def _double(plot: Any, values: Sequence[float]) -> None:
    """Have the x axis go by doublings, marked where there are values."""
    plot.set_xscale("log", base=2)
    plot.set_xticks(sorted(set(values)))
    plot.xaxis.set_major_formatter("{x:g}")


def _style(name: str, colour: object) -> dict[str, object]:
    if name == "covey":
        return {"color": "black", "linewidth": 2.5, "zorder": 5}
    if name == "oracle":
        return {"color": "red", "linewidth": 1.5, "linestyle": "--", "zorder": 6}
    return {"color": colour, "linewidth": 1.2, "linestyle": ":" if name.startswith("fixed") else "-"}
