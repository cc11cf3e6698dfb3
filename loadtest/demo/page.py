"""Writes the pictures as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path

from covey.contracts.types import JsonDict
from loadtest.report import page

FILE = "index.html"


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
