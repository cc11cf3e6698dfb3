"""Tables and pictures of results. Knows no bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from covey.types import JsonDict
from loadtest.bench.statistics import Spread


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its lines by name."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False
    from_zero: bool = True


def number(value: object, digits: int = 2) -> str:
    """A dash where nothing was measured."""
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else "-"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def as_json(spread: Spread | None) -> JsonDict | None:
    if spread is None:
        return None
    return {"median": spread.median, "low": spread.low, "high": spread.high, "repetitions": spread.count}


def from_json(value: JsonDict | None) -> Spread | None:
    if value is None:
        return None
    return Spread(value["median"], value["low"], value["high"], value["repetitions"])


def curves(
    path: Path,
    *,
    title: str,
    axes: tuple[str, str],
    lines: Mapping[str, Mapping[float, Spread]],
    log_x: bool = False,
) -> None:
    """One line per name through the medians, bars from quartile to quartile. `axes` are what x and y are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plot = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, points in ((name, points) for name, points in lines.items() if points):
        xs = sorted(points)
        medians = [points[x].median for x in xs]
        below = [points[x].median - points[x].low for x in xs]
        above = [points[x].high - points[x].median for x in xs]
        plot.errorbar(xs, medians, yerr=[below, above], label=name, marker="o", capsize=3)
    if log_x:
        _double(plot, [x for points in lines.values() for x in points])
    plot.set(title=title, xlabel=axes[0], ylabel=axes[1])
    plot.set_ylim(bottom=0)
    plot.grid(alpha=0.3)
    plot.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))  # beside the curves, never over them
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def panels(path: Path, title: str, shown: Sequence[Panel]) -> None:
    """Panels side by side. A name has one colour in all of them; covey is drawn thick and on top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for panel in shown for name in panel.lines))
    colours = pyplot.get_cmap("tab20").colors
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(5 * columns, 3.3 * rows), layout="constrained", squeeze=False
    )
    for panel, plot in zip(shown, grid.flat):
        for name, points in panel.lines.items():
            plot.plot(*zip(*points), label=name, **_style(name, colours[names.index(name) % len(colours)]))
        plot.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        if panel.log_x:
            _double(plot, [x for points in panel.lines.values() for x, _ in points])
        if panel.from_zero:
            plot.set_ylim(bottom=0)
        plot.grid(alpha=0.3)
    for plot in grid.flat[len(shown) :]:
        plot.set_visible(False)
    known = {label: line for plot in grid.flat for line, label in zip(*plot.get_legend_handles_labels())}
    figure.legend(known.values(), known.keys(), loc="outside right center", fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _double(plot: Any, values: Sequence[float]) -> None:
    """An x axis by doublings, marked where there are values."""
    plot.set_xscale("log", base=2)
    plot.set_xticks(sorted(set(values)))
    plot.xaxis.set_major_formatter("{x:g}")


def _style(name: str, colour: object) -> dict[str, object]:
    if name == "covey":
        return {"color": "black", "linewidth": 2.5, "zorder": 5}
    if name == "oracle":
        return {"color": "red", "linewidth": 1.5, "linestyle": "--", "zorder": 6}
    return {"color": colour, "linewidth": 1.2, "linestyle": ":" if name.startswith("fixed") else "-"}
