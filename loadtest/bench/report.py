"""Tables and pictures of results. Knows no bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from covey.types import JsonDict
from loadtest.bench.statistics import Spread


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
        plot.set_xscale("log", base=2)
        plot.set_xticks(sorted({x for points in lines.values() for x in points}))
        plot.xaxis.set_major_formatter("{x:g}")
    plot.set(title=title, xlabel=axes[0], ylabel=axes[1])
    plot.set_ylim(bottom=0)
    plot.grid(alpha=0.3)
    plot.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))  # beside the curves, never over them
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
