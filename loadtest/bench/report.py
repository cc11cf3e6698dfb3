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


def curves(
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Mapping[float, Spread]],
    log_x: bool = False,
) -> None:
    """One line per name through the medians, bars from quartile to quartile."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, points in lines.items():
        xs = sorted(points)
        medians = [points[x].median for x in xs]
        below = [points[x].median - points[x].low for x in xs]
        above = [points[x].high - points[x].median for x in xs]
        axes.errorbar(xs, medians, yerr=[below, above], label=name, marker="o", capsize=3)
    if log_x:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({x for points in lines.values() for x in points}))
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
