"""Shows one answer as it was written without and with drafts: a replay for the page, and a picture."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tokenizers import Tokenizer

from covey_client import Client
from covey_client.response import Chunk, Completion

DRAFTED, OWN = "#b7e4c7", "#e9ecef"  # backgrounds of accepted drafts and of the target's own tokens
SIZE, DPI = (11.0, 3.9), 130  # of the picture, in inches
FONT, LEFT, RIGHT, LINE = 10.5, 0.012, 0.988, 0.073  # points; the rest are shares of a panel

SCRIPT = """
<script>for (const box of document.querySelectorAll(".replay")) {
  const sides = JSON.parse(box.dataset.sides), end = Math.max(...sides.map(side => side.pieces.at(-1).at));
  let began = performance.now();
  const draw = () => {
    let now = (performance.now() - began) / 1000;
    if (now > end + 3) { began = performance.now(); now = 0; }
    sides.forEach((side, number) => {
      const column = box.children[number], shown = side.pieces.filter(piece => piece.at <= now);
      const last = side.pieces.at(-1).at;
      column.querySelector("b").textContent = Math.min(now, last).toFixed(1) + " s";
      column.querySelector("p").innerHTML = shown.map(piece => {
        const mark = document.createElement(piece.drafted ? "mark" : "span");
        mark.textContent = piece.text; return mark.outerHTML; }).join("");
    });
    setTimeout(draw, 30);
  };
  draw();
}</script>
"""
STYLE = f"""
<style>.replay {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1.2rem; }}
.replay > div {{ border: 1px solid #e4e4e4; border-radius: 6px; padding: .7rem; min-height: 16rem; }}
.replay h3 {{ margin: 0; font-size: 1rem; }} .replay p {{ white-space: pre-wrap; }}
.replay mark {{ background: {DRAFTED}; }}</style>
"""


@dataclass(frozen=True)
class Piece:
    """A token, when it came, and whether it was an accepted draft."""

    at: float
    text: str
    drafted: bool


@dataclass(frozen=True)
class Side:
    """One writing of the answer."""

    title: str
    pieces: Sequence[Piece]

    @property
    def seconds(self) -> float:
        return self.pieces[-1].at


def written(client: Client, tokenizer: Tokenizer, title: str, prompt: Any, **settings: Any) -> tuple[Side, Completion]:
    """Ask, and note when each token comes. Each round ends with a token of the target's own."""
    began, found, chunks = time.monotonic(), list[Piece](), list[Chunk]()
    for chunk in client.stream(prompt, **settings):
        at = time.monotonic() - began
        chunks.append(chunk)
        texts = [tokenizer.decode([token], skip_special_tokens=True) for token in chunk.tokens]
        found += [Piece(at, text, place < len(texts) - 1) for place, text in enumerate(texts)]
    return Side(title, found), Completion.join(chunks)


def replay(sides: Sequence[Side]) -> str:
    """Return HTML that writes the answers again and again, side by side, as fast as they came."""
    columns = "".join(f"<div><h3>{escape(side.title)}: <b></b></h3><p></p></div>" for side in sides)
    data = escape(json.dumps([asdict(side) for side in sides]))
    return f'{STYLE}<div class="replay" data-sides="{data}">{columns}</div>{SCRIPT}'


def picture(sides: Sequence[Side], path: Path) -> None:
    """Draw how far each side was when the fastest one had ended."""
    drawn, now = Figure(figsize=SIZE, dpi=DPI), min(side.seconds for side in sides)
    canvas = FigureCanvasAgg(drawn)
    for number, side in enumerate(sides):
        axes = drawn.add_axes((0.01 + number / len(sides), 0.02, 1 / len(sides) - 0.02, 0.86))
        axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        done = [piece for piece in side.pieces if piece.at <= now]
        axes.set_title(f"{side.title}: {len(done)} tokens after {now:.1f} s", loc="left", fontsize=FONT + 1)
        x, y = LEFT, 1 - LINE
        for text, drafted, breaks in _words(done):
            mark = axes.text(x, y, text, fontsize=FONT, va="center", family="DejaVu Sans")
            width = axes.transData.inverted().transform(mark.get_window_extent(canvas.get_renderer()))[:, 0]
            if breaks or x + width[1] - width[0] > RIGHT:
                x, y = LEFT, y - LINE
                mark.set(position=(x, y), text=text if breaks else text.lstrip())
                width = axes.transData.inverted().transform(mark.get_window_extent(canvas.get_renderer()))[:, 0]
            mark.set_bbox({"facecolor": DRAFTED if drafted else OWN, "edgecolor": "none", "pad": 1.2})
            x += width[1] - width[0]
            if y < LINE:
                break
    drawn.savefig(path)


def _words(pieces: Sequence[Piece]) -> Iterator[tuple[str, bool, bool]]:
    """Yield texts that stand in one line, whether they were drafted, and whether a new line begins before them."""
    for piece in pieces:
        for number, text in enumerate(piece.text.split("\n")):
            if text or number:
                yield text.replace("$", r"\$"), piece.drafted, number > 0
