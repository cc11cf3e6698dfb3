"""Writes a run as one HTML file that needs nothing else: tables, and pictures as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest import charts, pictures, records, summary
from loadtest.charts import Chart
from loadtest.records import RecordedRun
from loadtest.summary import Figure

FILE = "report.html"
COMPARED = ("started", "server", "speculation", "ran_seconds", "complete")  # may differ between compared runs
WIDE = 8  # columns; a wider table gets a smaller font
SAME = 0.03  # relative differences below this are not called better or worse
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 82rem; padding: 0 1rem; color: #1b1b1b; }
h1 { margin-bottom: .2rem; } h2 { margin: 2rem 0 .6rem; }
.table { overflow-x: auto; } .wide { font-size: .85rem; } .wide td, .wide th { padding: .25rem .45rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { background: #f4f4f4; }
.better { color: #00693e; } .worse { color: #a83232; } .note, figcaption { color: #555; font-size: .9rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(30rem, 1fr)); gap: 1.2rem; }
figure { margin: 1.5rem 0; border: 1px solid #e4e4e4; border-radius: 6px; padding: .7rem; }
figure h3 { margin: 0 0 .3rem; font-size: 1rem; }
.pictures figure { margin: 0; } figure svg { width: 100%; height: auto; }
.cut { background: #fff3cd; padding: .6rem 1rem; border-radius: 6px; }
"""
NOTES = (
    "TTFT is from sending a request to its first token; TPOT is from the first token to the end over the other tokens, "
    "by the server's count.",
    "Service levels are measured by the client. Failed requests count as not met; requests that were unfinished when "
    "the run ended are left out.",
    "What a level of a mix is to meet is what the server says of its class; a target without a number is none, or is "
    "relative to a baseline that the server has not measured.",
    "The pictures of batch, drafts and KV come from the server's metrics port, which counts all clients.",
)


def write(run: RecordedRun, earlier: RecordedRun | None = None) -> Path:
    """Write the report into the run's folder; returns its path."""
    path = run.folder / FILE
    path.write_text(html(run, earlier), encoding="utf-8")
    return path


def html(run: RecordedRun, earlier: RecordedRun | None = None) -> str:
    drawn = "".join(map(figure, pictures.charts(run, earlier)))
    return page(
        f"Covey load test {run.folder.name}",
        f"""<h1>Covey load test</h1>
<p class="note">{escape(_subtitle(run, earlier))}</p>
{_cut(run)}
<h2>Summary</h2>{_totals(run, earlier)}
<h2>Service levels</h2>{_levels(run)}
<h2>Kinds of prompt</h2>{_topics(run)}
<h2>Over time</h2><div class="pictures">{drawn}</div>
{_errors(run)}
<h2>What was run</h2>{_table(("setting", "value"), _settings(run))}
<h2>Notes</h2><ul class="note">{"".join(f"<li>{escape(note)}</li>" for note in NOTES)}</ul>""",
    )


def figure(chart: Chart) -> str:
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{charts.svg(chart)}"
        f"<figcaption>{escape(chart.about)}</figcaption></figure>"
    )


def page(title: str, body: str) -> str:
    """Return a whole HTML page of that body."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>
{body}
</body></html>
"""


def show(run: RecordedRun, earlier: RecordedRun | None = None) -> None:
    """Show the summary on the terminal."""
    table = Table("figure", "unit", "value", *((records.called(earlier, run), "change") if earlier else ()), box=None)
    for figure, before in _paired(run, earlier):
        more = (number(before), change(figure, before)[0]) if earlier else ()
        table.add_row(figure.name, figure.unit, number(figure.value), *more)
    console = Console()
    console.print(table)
    if earlier and (unlike := _unlike(run, earlier)):
        console.print(unlike.strip(" ·"), style="yellow", highlight=False)


def number(value: float | None) -> str:
    """Return three digits, or all of a whole number."""
    if value is None:
        return "–"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def change(figure: Figure, before: float | None) -> tuple[str, str]:
    """Return how a figure differs from the earlier run's, and whether that is `better`, `worse` or neither."""
    now = figure.value
    if now is None or not before:
        return ("–", "")
    relative = now / before - 1
    if figure.higher_is_better is None or abs(relative) < SAME:
        return (f"{100 * relative:+.1f} %", "")
    return (f"{100 * relative:+.1f} %", "better" if (relative > 0) == figure.higher_is_better else "worse")


def _subtitle(run: RecordedRun, earlier: RecordedRun | None) -> str:
    said = f"{run.settings.get('started', '')} · {run.settings.get('shape', '')} · {run.seconds:.0f} s of load"
    if earlier is None:
        return said
    return f"{said} · compared with the run of {earlier.settings.get('started', '')}{_unlike(run, earlier)}"


def _unlike(run: RecordedRun, earlier: RecordedRun) -> str:
    """Return the differences between two runs' loads, because of which their figures say little about the servers."""
    names = dict.fromkeys((*run.settings, *earlier.settings))
    found = [name for name in names if name not in COMPARED and run.settings.get(name) != earlier.settings.get(name)]
    return f" · another load: other {', '.join(found)}" if found else ""


def _cut(run: RecordedRun) -> str:
    if run.complete:
        return ""
    asked = run.settings.get("seconds", 0.0)
    return f'<p class="cut">This run was cut short: {run.seconds:.0f} of {asked:.0f} s.</p>'


def _paired(run: RecordedRun, earlier: RecordedRun | None) -> list[tuple[Figure, float | None]]:
    before = {(f.name, f.unit): f.value for f in summary.totals(earlier)} if earlier else {}
    return [(figure, before.get((figure.name, figure.unit))) for figure in summary.totals(run)]


def _totals(run: RecordedRun, earlier: RecordedRun | None) -> str:
    rows = []
    for figure, before in _paired(run, earlier):
        cells = [escape(figure.name), escape(figure.unit), number(figure.value)]
        if earlier:
            said, kind = change(figure, before)
            cells += [number(before), f'<span class="{kind}">{said}</span>']
        rows.append(cells)
    return _table(("figure", "unit", "this run", *((records.called(earlier, run), "change") if earlier else ())), rows)


def _levels(run: RecordedRun) -> str:
    rows: list[list[str]] = []
    heads: tuple[str, ...] = ()
    for level in run.levels:
        figures = summary.by_level(run, level)
        heads = ("level", "TTFT target, ms", "TPOT target, ms", *figures)
        targets = [number(None if math.isinf(each) else 1000 * each) for each in (level.ttft, level.tpot)]
        rows.append([escape(level.name), *targets, *(number(value) for value in figures.values())])
    return _table(heads, rows)


def _topics(run: RecordedRun) -> str:
    topics = summary.topics(run)
    figures = [summary.by_topic(run, topic) for topic in topics]
    if not figures:
        return '<p class="note">No request finished.</p>'
    rows = [[escape(topic or "–"), *(number(v) for v in row.values())] for topic, row in zip(topics, figures)]
    return _table(("kind", *figures[0]), rows)


def _errors(run: RecordedRun) -> str:
    found = summary.errors(run)
    if not found:
        return ""
    return "<h2>Failures</h2>" + _table(("what the client saw", "requests"), [[escape(w), str(n)] for w, n in found])


def _settings(run: RecordedRun) -> list[list[str]]:
    hidden = ("levels", "ran_seconds", "complete")
    return [
        [escape(name.replace("_", " ")), escape(str(value))]
        for name, value in run.settings.items()
        if name not in hidden and value is not None
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "table wide" if len(heads) > WIDE else "table"
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
