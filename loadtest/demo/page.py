"""Writes the charts of all steps as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from covey.contracts.types import JsonDict
from loadtest.demo.steps import Shown
from loadtest.report import figure, page

FILE = "index.html"


def write(folder: Path, steps: Mapping[str, JsonDict], shown: Mapping[str, Shown], ended: str = "") -> Path:
    """Write the page and return its path. `steps` has by name the subject and findings of each, `shown` its charts;
    `ended` says why there are no more of them."""
    drawn = "".join(_step(step, shown[name]) for name, step in steps.items())
    cut = f'<p class="cut">{escape(ended)}</p>' if ended else ""
    path = folder / FILE
    body = f"<h1>Covey at work</h1>\n{cut}\n{drawn or '<p>No step has ended, so nothing is drawn.</p>'}"
    path.write_text(page("Covey at work", body), encoding="utf-8")
    return path


def _step(step: JsonDict, shown: Shown) -> str:
    return (
        f"<h2>{escape(step['title'])}</h2><p>{escape(step['sentence'])} {escape(step['texts'])}</p>"
        f'{shown.html}<div class="pictures">{"".join(map(figure, shown.charts))}</div>'
        f'<p class="note">On {escape(step["devices"])}: <code>{escape(step["command"])}</code></p>'
    )
