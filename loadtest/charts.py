"""Draws lines over time, and medians with intervals, as SVG. Does not know their meaning."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import matplotlib

matplotlib.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a800")  # for all eyes

Points = list[tuple[float, float]]  # (seconds after the start, value)


@dataclass(frozen=True)
class Chart:
    """Describes one pair of axes and its lines by name; a line that needs no name has "".
    `about` is the sentence under it."""

    title: str
    unit: str
    lines: Mapping[str, Points]
    about: str = ""
    earlier: Mapping[str, Points] = field(default_factory=dict)  # another run's, dashed and grey
    end: float | None = None  # of the time
    stacked: bool = False
    top: float | None = None
    whole: bool = False  # counts: no fractions on the axis
    log: bool = False
    marks: Sequence[tuple[float, str]] = ()  # times with their names


def svg(chart: Chart) -> str:
    """Return the chart as an `<svg>` element. A line without points is not there."""
    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    axes: Axes = figure.add_subplot()
    drawn = [(label, points) for label, points in chart.lines.items() if points]
    if not drawn:
        axes.text(0.5, 0.5, "nothing of this in the run", ha="center", va="center", transform=axes.transAxes)
    elif chart.stacked:
        _stack(axes, drawn)
    else:
        for colour, (label, points) in zip(COLOURS, drawn):
            mark = "o" if len(points) < 40 else ""
            axes.plot(*zip(*points), label=label, color=colour, marker=mark, markersize=3, linewidth=1.5)
    for label, points in chart.earlier.items() if drawn else ():
        if points:
            axes.plot(*zip(*points), label=label, color="#777777", linestyle="--", linewidth=1.2)
    for at, text in chart.marks:
        axes.axvline(at, color="0.6", linewidth=0.8, zorder=0)
        place = {"xycoords": axes.get_xaxis_transform(), "xytext": (2, -3), "textcoords": "offset points"}
        axes.annotate(text, (at, 1), **place, rotation=90, va="top", fontsize=7, color="0.2")
    _dress(axes, chart, legend=any(label for label, _ in drawn))
    return _written(figure, chart.title)


def intervals(
    title: str,
    along: str,
    unit: str,
    lines: Mapping[str, Mapping[str, Sequence[float] | None]],
    level: float,
) -> str:
    """Return lines of medians with their intervals, `(median, low, high)` by name of the place, as an `<svg>` element.
    A line at `level` is the comparison."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes: Axes = figure.add_subplot()
    places = list(dict.fromkeys(place for line in lines.values() for place in line))
    for index, (colour, (label, line)) in enumerate(zip(COLOURS, lines.items())):
        found = [(places.index(place), *each) for place, each in line.items() if each]
        if found:
            at, medians, lows, highs = zip(*found)
            below, above = ([abs(a - b) for a, b in zip(medians, ends)] for ends in (lows, highs))
            shifted = [place + 0.06 * (index - (len(lines) - 1) / 2) for place in at]  # bars do not hide one another
            axes.errorbar(shifted, medians, (below, above), label=label, color=colour, marker="o", capsize=3)
    axes.axhline(level, color="0.4", linewidth=0.8)
    axes.set_xticks(range(len(places)), places)
    axes.set(xlabel=along, ylabel=unit)
    axes.set_title(title, fontsize=8)
    axes.grid(visible=True, alpha=0.25)
    if axes.containers:
        axes.legend(fontsize=8, frameon=False)
    return _written(figure, title)


def _written(figure: Figure, title: str) -> str:
    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": f"chart: {title}"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Title": title})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _dress(axes: Axes, chart: Chart, *, legend: bool) -> None:
    axes.set(xlabel="time since the start, s", ylabel=chart.unit, xlim=(0, chart.end))
    if chart.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if chart.top is not None:
        axes.set_ylim(0, chart.top * 1.05)
    elif axes.get_ylim()[1] < 1 and chart.whole:
        axes.set_ylim(top=1)
    if chart.whole:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=5, fontsize=8, frameon=False)


def _stack(axes: Axes, series: Sequence[tuple[str, Points]]) -> None:
    times = sorted({at for _, points in series for at, _ in points})
    values = []
    for _, points in series:
        known = dict(points)
        values.append([known.get(at, 0.0) for at in times])
    axes.stackplot(times, *values, labels=[label for label, _ in series], colors=COLOURS, alpha=0.8)
