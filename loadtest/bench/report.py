"""Tables and pictures of results. Knows no bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.table import Table

from covey.types import JsonDict
from loadtest.bench.statistics import Spread

MOST_LINES = 8  # that a reader can tell apart
SMALL = 5  # small panels in a row
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a800")  # for all eyes
FAINT: dict[str, object] = {"color": "0.85", "linewidth": 0.8, "zorder": 1}
SOUGHT = ("covey", "oracle", "off", "general", "nightjar")


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
    """Panels side by side. A name has one colour in all of them; covey is drawn thick and on top. Of many names the few
    that matter most have colours, and below each of the others has a panel of its own, beside covey. A
    panel that shares no name with the first has colours and a legend of its own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    apart = [panel for panel in shown[1:] if not panel.lines.keys() & shown[0].lines.keys()]
    names = list(dict.fromkeys(name for panel in shown if panel not in apart for name in panel.lines))
    main = names if len(names) <= MOST_LINES else _foremost(names, shown[0])
    others = [name for name in names if name not in main and name in shown[0].lines]
    colours = dict(zip(main, cycle(COLOURS)))
    columns = min(2, len(shown))
    heights = [3.3 * -(-len(shown) // columns), 1.5 * -(-len(others) // SMALL)]
    figure = pyplot.figure(figsize=(5 * columns + 1, sum(heights)), layout="constrained")
    above, *below = figure.subfigures(2, 1, height_ratios=heights).flat if others else [figure]
    grid = above.subplots(-(-len(shown) // columns), columns, squeeze=False)
    for panel, plot in zip(shown, grid.flat):
        of = dict(zip(panel.lines, cycle(COLOURS))) if panel in apart else colours
        for name, points in panel.lines.items():
            plot.plot(*zip(*points), **(_style(name, of[name]) | {"label": name} if name in of else FAINT))
        if panel in apart:
            plot.legend(fontsize=8)
        plot.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        _scale(plot, panel)
    for plot in grid.flat[len(shown) :]:
        plot.set_visible(False)
    plots = [plot for panel, plot in zip(shown, grid.flat) if panel not in apart]
    known = {label: line for plot in plots for line, label in zip(*plot.get_legend_handles_labels())}
    above.legend(known.values(), known.keys(), loc="outside right center", fontsize=8)
    for beneath in below:
        _small(beneath, shown[0], others)
    figure.suptitle(title)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _foremost(names: Sequence[str], panel: Panel) -> list[str]:
    """The ones that a reader looks for, and those that are highest in a panel, in the order given."""
    heights = {name: sum(y for _, y in points) / len(points) for name, points in panel.lines.items()}
    wanted = [name for name in SOUGHT if name in names]
    wanted += sorted((name for name in names if name not in wanted), key=lambda name: -heights.get(name, 0.0))
    return [name for name in names if name in wanted[: MOST_LINES - 1]]


def _small(figure: Any, panel: Panel, names: Sequence[str]) -> None:
    """A small panel for each of the names, with covey's line behind its own."""
    grid = figure.subplots(-(-len(names) // SMALL), SMALL, sharex=True, sharey=True, squeeze=False)
    for name, plot in zip(names, grid.flat):
        if "covey" in panel.lines:
            plot.plot(*zip(*panel.lines["covey"]), color="black", linewidth=0.8)
        plot.plot(*zip(*panel.lines.get(name, ())), color=COLOURS[0], linewidth=1.6)
        plot.set_title(name, fontsize=8)
        plot.tick_params(labelsize=7)
        _scale(plot, panel)
    for plot in grid.flat[len(names) :]:
        plot.set_visible(False)
    figure.suptitle(f"{panel.title}: {panel.y} of each of the others, beside covey's (thin)", fontsize=9)


def _scale(plot: Any, panel: Panel) -> None:
    if panel.log_x:
        _double(plot, [x for points in panel.lines.values() for x, _ in points])
    if panel.from_zero:
        plot.set_ylim(bottom=0)
    plot.grid(alpha=0.3)


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
