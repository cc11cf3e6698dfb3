"""Draws a cost table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey_client.costs.table import CostTable

NARROW = 4  # times the least: so few powers of two lie between that the places themselves are the ticks
Points = Mapping[str, list[tuple[float, float]]]  # by the line's name


def draw(table: CostTable, path: Path) -> None:
    """Draw the parts of a round's time. Every drafter has the lines of its rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    axes[1][2].set_axis_off()
    figure.suptitle(f"Costs of {table.name}")
    draft = {name: [(rows, depth, seconds) for rows, depth, seconds in cells] for name, cells in table.draft.items()}
    switch = {name: [(rows, lag, seconds) for lag, rows, seconds in cells] for name, cells in table.switch.items()}
    verify = _lines("", table.verify)
    _panel(axes[0][0], "Pass over the target", "tokens in the pass", verify)
    _panel(axes[0][1], "Drafting, without catch-up", "depth", _all(draft), log_x=False)
    _panel(axes[0][2], "Catch-up when drafting begins (C_switch)", "lag, tokens", _all(switch))
    _panel(axes[1][0], "Time per token without drafts", "rows", {"a round": list(table.plain)}, legend=False)
    _panel(axes[1][1], "Of which outside target and drafters", "rows", {"a round": list(table.overhead)}, legend=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _all(cells: Mapping[str, Iterable[tuple[int, int, float]]]) -> Points:
    """Return the lines of every drafter, named by rows alone if there is only one."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, found in cells.items():
        lines |= _lines(f"{name}, " if len(cells) > 1 else "", found)
    return lines


def _lines(prefix: str, cells: Iterable[tuple[int, int, float]]) -> Points:
    """Return one line for each number of rows, the cells' first coordinate."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for rows, at, seconds in sorted(cells):
        lines.setdefault(f"{prefix}{rows} row{'s' * (rows > 1)}", []).append((at, seconds))
    return lines


def _panel(plot: Any, title: str, x: str, lines: Points, *, log_x: bool = True, legend: bool = True) -> None:
    for name, points in lines.items():
        if points:
            xs, seconds = zip(*points)
            plot.plot(xs, [1000 * value for value in seconds], marker="o", markersize=3, label=name)
    if log_x:
        plot.set_xscale("log", base=2)
        plot.xaxis.set_major_formatter(lambda value, _position: f"{value:g}")
        places = sorted({at for points in lines.values() for at, _ in points})
        if places and places[-1] < NARROW * places[0]:
            plot.set_xticks(places)
    highest = max((1000 * seconds for points in lines.values() for _, seconds in points), default=0.0)
    if highest:
        plot.set_ylim(0, 1.1 * highest)
    else:
        plot.text(0.5, 0.5, "not measured", ha="center", va="center", transform=plot.transAxes)
        plot.set(xticks=[], yticks=[])
    plot.set_title(title, fontsize=10)
    plot.set_xlabel(x)
    plot.set_ylabel("ms")
    plot.grid(alpha=0.3)
    if legend and lines:
        plot.legend(fontsize=7)
