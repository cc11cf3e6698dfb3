"""Draws the report's pictures, as SVG: a run over time, and an earlier run dashed and grey beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib

matplotlib.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey_client.rates import MetricsSnapshot, Span
from loadtest import records, summary
from loadtest.bench.report import COLOURS
from loadtest.records import Record, RecordedRun
from loadtest.summary import Points, attained, counted, gauge, over_time, percent, share, streamed

PHASES = ("plan", "draft", "pass", "transport", "commit")
RESIDENT = "covey_drafter_resident_bytes"
GENERATED, DRAFTED, ACCEPTED, TREES = (
    "covey_generation_tokens_total",
    "covey_spec_decode_num_draft_tokens_total",
    "covey_spec_decode_num_accepted_tokens_total",
    "covey_spec_decode_num_drafts_total",
)


@dataclass(frozen=True)
class Line:
    label: str
    points: Callable[[RecordedRun], Points]
    compared: bool = False  # the earlier run's is drawn too


@dataclass(frozen=True)
class Picture:
    """Describes what one pair of axes shows; `about` is the sentence under it."""

    title: str
    unit: str
    about: str
    lines: Sequence[Line]
    stacked: bool = False
    top: float | None = None
    whole: bool = False  # counts: no fractions on the axis


def pictures(run: RecordedRun) -> list[Picture]:
    """Return the pictures that every run has; one without exported metrics stays empty and says so."""
    span = summary.width(run)
    per = f"requests that ended in each {span:g} s"
    return [
        Picture(
            "Output tokens",
            "tokens/s",
            "Generated tokens a second by the server's counter; goodput counts those of answers that met their SLO, "
            "spread evenly over the time that each was streamed.",
            [
                Line("generated", _rate(GENERATED), compared=True),
                Line("goodput", lambda r: streamed(r, [record for record in r.records if attained(r, record)])),
            ],
        ),
        Picture(
            "Requests",
            "requests/s",
            "Sent, finished and failed requests a second.",
            [
                Line("sent", lambda r: over_time(r, lambda rows: len(rows) / summary.width(r), at_end=False)),
                Line("finished", lambda r: over_time(r, lambda rows: _count(rows, failed=False) / summary.width(r))),
                Line("failed", lambda r: over_time(r, lambda rows: _count(rows, failed=True) / summary.width(r))),
            ],
        ),
        Picture(
            "Time to first token",
            "ms",
            f"From sending a request to its first token: {per}.",
            _quantiles("ttft"),
        ),
        Picture(
            "Time per output token",
            "ms/token",
            f"From the first token to the end, over the other tokens: {per}.",
            _quantiles("tpot"),
        ),
        Picture(
            "SLO attainment",
            "% of requests",
            f"Share of the {per} that met both targets of their level, measured by the client.",
            [Line(level.name, _attainment(level.name)) for level in run.levels],
            top=100,
        ),
        Picture(
            "Batch and queue",
            "requests",
            "Requests in the batch and in the queue, at the last round before each look.",
            [
                Line("running", _gauge("covey_requests_running"), compared=True),
                Line("waiting", _gauge("covey_requests_waiting")),
            ],
            whole=True,
        ),
        Picture(
            "Depth of drafts (gamma)",
            "tokens a tree",
            "Drafted and accepted tokens of a verified tree, on average.",
            [
                Line("drafted", _ratio(DRAFTED, TREES), compared=True),
                Line("accepted", _ratio(ACCEPTED, TREES)),
            ],
        ),
        Picture(
            "Depths chosen",
            "rounds/s",
            "Rounds a second by the draft depth that the policy chose; 0 is plain decoding.",
            [
                Line(depth, _rate("covey_planner_rounds_total", depth=depth))
                for depth in sorted(_values(run, "covey_planner_rounds_total", "depth"), key=int)
            ],
            stacked=True,
        ),
        Picture(
            "Drafted tokens accepted, by drafter",
            "%",
            "Accepted over drafted tokens of each drafter, by the server's counters.",
            [Line(name, _acceptance(drafter=name)) for name in _values(run, DRAFTED, "drafter")],
            top=100,
        ),
        Picture(
            "Drafters in memory",
            "MiB",
            "Memory of each drafter's weights and caches; 0 while it does not answer.",
            [Line(name, _gauge(RESIDENT, unit=2**20, drafter=name)) for name in _values(run, RESIDENT, "drafter")],
            stacked=True,
        ),
        Picture(
            "KV blocks in use",
            "blocks",
            "Blocks that running requests hold, at the last round before each look.",
            [Line("used", _gauge("covey_kv_blocks", state="used"), compared=True)],
            whole=True,
        ),
        Picture(
            "Time of a round by phase",
            "ms a round",
            "Mean time of the engine's rounds; pass is inside the target, transport the call around it.",
            [Line(phase, _phase(phase)) for phase in PHASES],
            stacked=True,
        ),
        Picture(
            "Prefill",
            "tokens/s",
            "Prompt tokens computed, and those found in the prefix cache.",
            [
                Line("computed", _rate("covey_prefill_tokens_total")),
                Line("reused", _rate("covey_prefix_cache_hit_tokens_total")),
            ],
        ),
    ]


def draw(picture: Picture, run: RecordedRun, earlier: RecordedRun | None) -> str:
    """Return the picture as an `<svg>` element."""
    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    axes: Axes = figure.add_subplot()
    end = max([run.seconds, *(record.end for record in run.records)])
    series = [(line.label, line.points(run)) for line in picture.lines]
    drawn = [(label, points) for label, points in series if points]
    if not drawn:
        axes.text(0.5, 0.5, "nothing of this in the run", ha="center", va="center", transform=axes.transAxes)
    elif picture.stacked:
        _stack(axes, drawn)
    else:
        for colour, (label, points) in zip(COLOURS, drawn):
            mark = "o" if len(points) < 40 else ""
            axes.plot(*zip(*points), label=label, color=colour, marker=mark, markersize=3, linewidth=1.5)
    if earlier is not None and drawn:
        called = records.called(earlier, run)
        for line in picture.lines:
            points = [point for point in line.points(earlier) if point[0] <= end] if line.compared else []
            if points:
                axes.plot(
                    *zip(*points), label=f"{line.label}, {called}", color="#777777", linestyle="--", linewidth=1.2
                )
    _dress(axes, picture, end, legend=bool(drawn))
    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": picture.title}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Title": picture.title})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _dress(axes: Axes, picture: Picture, end: float, *, legend: bool) -> None:
    axes.set(xlabel="time since the start, s", ylabel=picture.unit, xlim=(0, end))
    axes.set_ylim(bottom=0)
    if picture.top is not None:
        axes.set_ylim(0, picture.top * 1.05)
    elif axes.get_ylim()[1] < 1 and picture.whole:
        axes.set_ylim(top=1)
    if picture.whole:
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


def _quantiles(name: str) -> list[Line]:
    def points(percentile: int) -> Callable[[RecordedRun], Points]:
        return lambda run: over_time(run, lambda rows: summary.quantile_ms(rows, name, percentile))

    return [Line(f"p{p}", points(p), compared=p == 95) for p in (50, 95)]


def _attainment(level: str) -> Callable[[RecordedRun], Points]:
    def value(run: RecordedRun, rows: Sequence[Record]) -> float | None:
        return percent(share([attained(run, record) for record in rows if record.level == level]))

    return lambda run: over_time(run, partial(value, run))


def _values(run: RecordedRun, metric: str, label: str) -> list[str]:
    """Return a label's values, in any look."""
    return sorted({value for reading in run.readings for value in reading.by(metric, label)})


def _rate(metric: str, **labels: str) -> Callable[[RecordedRun], Points]:
    return lambda run: counted(run, lambda span: span.rate(metric, **labels))


def _ratio(numerator: str, denominator: str) -> Callable[[RecordedRun], Points]:
    return lambda run: counted(run, lambda span: span.ratio(numerator, denominator))


def _acceptance(**labels: str) -> Callable[[RecordedRun], Points]:
    def value(span: Span) -> float | None:
        drafted = span.grew(DRAFTED, **labels)
        return 100 * (span.grew(ACCEPTED, **labels) or 0.0) / drafted if drafted else None

    return lambda run: counted(run, value)


def _gauge(metric: str, unit: float = 1, **labels: str) -> Callable[[RecordedRun], Points]:
    def value(reading: MetricsSnapshot) -> float | None:
        found = reading.value(metric, **labels)
        return None if found is None else found / unit

    return lambda run: gauge(run, value)


def _phase(phase: str) -> Callable[[RecordedRun], Points]:
    def value(span: Span) -> float | None:
        rounds = span.grew("covey_rounds_total")
        return 1000 * (span.grew("covey_round_seconds_total", phase=phase) or 0.0) / rounds if rounds else None

    return lambda run: counted(run, value)


def _count(rows: Sequence[Record], *, failed: bool) -> int:
    return sum(record.failed == failed for record in rows)
