"""Draws the pictures, and writes them as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure

from covey.contracts.types import JsonDict
from loadtest.pictures import COLOURS
from loadtest.report import page

FILE = "index.html"
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Describes one pair of axes over seconds, and its lines by name, which is "" where the panel says all of it."""

    title: str
    y: str
    lines: Mapping[str, Points]
    marks: Sequence[tuple[float, str]] = ()  # times with their names
    log: bool = False


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side."""
    figure = Figure(figsize=(5.5 * len(panels), 3.3), layout="constrained")
    for panel, plot in zip(panels, figure.subplots(1, len(panels), squeeze=False).flat):
        for (name, points), colour in zip(panel.lines.items(), cycle(COLOURS)):
            plot.plot(*zip(*points), label=name or None, color=colour, linewidth=1.2)
        for at, text in panel.marks:
            plot.axvline(at, color="0.6", linewidth=0.8, zorder=0)
            plot.text(at, 0.98, f" {text}", transform=plot.get_xaxis_transform(), rotation=90, va="top", fontsize=8)
        plot.set(title=panel.title, xlabel="seconds", ylabel=panel.y)
        if panel.log:
            plot.set_yscale("log")
        else:
            plot.set_ylim(bottom=0)
        plot.grid(alpha=0.3)
        if any(panel.lines):
            plot.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def write(folder: Path, steps: Mapping[str, JsonDict], ended: str = "") -> Path:
    """Write the page and return where. `steps` has, by the name of their picture in that folder, what each is about and
    found; `ended` says why there are no more of them."""
    drawn = "".join(_figure(folder / f"{name}.png", step) for name, step in steps.items())
    cut = f'<p class="cut">{escape(ended)}</p>' if ended else ""
    path = folder / FILE
    body = f"<h1>Covey at work</h1>\n{cut}\n{drawn or '<p>No step has ended, so nothing is drawn.</p>'}"
    path.write_text(page("Covey at work", body), encoding="utf-8")
    return path


def _figure(picture: Path, step: JsonDict) -> str:
    data = base64.b64encode(picture.read_bytes()).decode()
    return (
        f"<figure><h3>{escape(step['title'])}</h3><p>{escape(step['sentence'])} {escape(step['texts'])}</p>"
        f'<img alt="{escape(step["title"])}" src="data:image/png;base64,{data}">'
        f"<figcaption>On {escape(step['devices'])}: <code>{escape(step['command'])}</code></figcaption></figure>"
    )
