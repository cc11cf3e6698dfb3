"""Draws the charts of a run's report: the run over time, compared with an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from covey_client.rates import MetricsSnapshot, Span
from loadtest import records, summary
from loadtest.charts import Chart, Points
from loadtest.records import Record, RecordedRun
from loadtest.summary import attained, counted, gauge, over_time, percent, share, streamed

RESIDENT = "covey_drafter_resident_bytes"
GENERATED, DRAFTED, ACCEPTED, TREES = (
    "covey_generation_tokens_total",
    "covey_spec_decode_num_draft_tokens_total",
    "covey_spec_decode_num_accepted_tokens_total",
    "covey_spec_decode_num_drafts_total",
)

Value = Callable[[RecordedRun], Points]


def charts(run: RecordedRun, earlier: RecordedRun | None = None) -> list[Chart]:
    """Return the charts that every run has; one without exported metrics stays empty and says so."""
    span = summary.width(run)
    per = f"requests that ended in each {span:g} s"
    end = max([run.seconds, *(record.end for record in run.records)])

    def chart(title: str, unit: str, about: str, lines: Mapping[str, Value], compared: str = "", **how: Any) -> Chart:
        """`compared`: the line of the earlier run to compare with."""
        before = {}
        if earlier is not None and compared:
            points = [point for point in lines[compared](earlier) if point[0] <= end]
            before[f"{compared}, {records.called(earlier, run)}"] = points
        drawn = {label: value(run) for label, value in lines.items()}
        return Chart(title, unit, drawn, about, before, end, **how)

    return [
        chart(
            "Output tokens",
            "tokens/s",
            "Generated tokens a second by the server's counter; goodput counts those of answers that met their SLO, "
            "spread evenly over the time that each was streamed.",
            {
                "generated": _rate(GENERATED),
                "goodput": lambda r: streamed(r, [record for record in r.records if attained(r, record)]),
            },
            "generated",
        ),
        chart(
            "Requests",
            "requests/s",
            "Sent, finished and failed requests a second.",
            {
                "sent": lambda r: over_time(r, lambda rows: len(rows) / summary.width(r), at_end=False),
                "finished": lambda r: over_time(r, lambda rows: _count(rows, failed=False) / summary.width(r)),
                "failed": lambda r: over_time(r, lambda rows: _count(rows, failed=True) / summary.width(r)),
            },
        ),
        chart(
            "Time to first token",
            "ms",
            f"From sending a request to its first token: {per}.",
            _quantiles("ttft"),
            "p95",
        ),
        chart(
            "Time per output token",
            "ms/token",
            f"From the first token to the end, over the other tokens: {per}.",
            _quantiles("tpot"),
            "p95",
        ),
        chart(
            "SLO attainment",
            "% of requests",
            f"Share of the {per} that met both targets of their level, measured by the client.",
            {level.name: _attainment(level.name) for level in run.levels},
            top=100,
        ),
        chart(
            "Batch and queue",
            "requests",
            "Requests in the batch and in the queue, at the last round before each look.",
            {"running": _gauge("covey_requests_running"), "waiting": _gauge("covey_requests_waiting")},
            "running",
            whole=True,
        ),
        chart(
            "Depth of drafts (gamma)",
            "tokens a tree",
            "Drafted and accepted tokens of a verified tree, on average.",
            {"drafted": _ratio(DRAFTED, TREES), "accepted": _ratio(ACCEPTED, TREES)},
            "drafted",
        ),
        chart(
            "Depths chosen",
            "rounds/s",
            "Rounds a second by the draft depth that the policy chose; 0 is plain decoding.",
            {
                depth: _rate("covey_planner_rounds_total", depth=depth)
                for depth in sorted(_values(run, "covey_planner_rounds_total", "depth"), key=int)
            },
            stacked=True,
        ),
        chart(
            "Drafted tokens accepted, by drafter",
            "%",
            "Accepted over drafted tokens of each drafter, by the server's counters.",
            {name: _acceptance(drafter=name) for name in _values(run, DRAFTED, "drafter")},
            top=100,
        ),
        chart(
            "Drafters in memory",
            "MiB",
            "Memory of each drafter's weights and caches; 0 while it does not answer.",
            {name: _gauge(RESIDENT, unit=2**20, drafter=name) for name in _values(run, RESIDENT, "drafter")},
            stacked=True,
        ),
        chart(
            "KV blocks in use",
            "blocks",
            "Blocks that running requests hold, at the last round before each look.",
            {"used": _gauge("covey_kv_blocks", state="used")},
            "used",
            whole=True,
        ),
    ]


def _quantiles(name: str) -> dict[str, Value]:
    def points(percentile: int) -> Value:
        return lambda run: over_time(run, lambda rows: summary.quantile_ms(rows, name, percentile))

    return {f"p{p}": points(p) for p in (50, 95)}


def _attainment(level: str) -> Value:
    def value(run: RecordedRun, rows: Sequence[Record]) -> float | None:
        return percent(share([attained(run, record) for record in rows if record.level == level]))

    return lambda run: over_time(run, partial(value, run))


def _values(run: RecordedRun, metric: str, label: str) -> list[str]:
    """Return a label's values, in any look."""
    return sorted({value for reading in run.readings for value in reading.by(metric, label)})


def _rate(metric: str, **labels: str) -> Value:
    return lambda run: counted(run, lambda span: span.rate(metric, **labels))


def _ratio(numerator: str, denominator: str) -> Value:
    return lambda run: counted(run, lambda span: span.ratio(numerator, denominator))


def _acceptance(**labels: str) -> Value:
    def value(span: Span) -> float | None:
        drafted = span.grew(DRAFTED, **labels)
        return 100 * (span.grew(ACCEPTED, **labels) or 0.0) / drafted if drafted else None

    return lambda run: counted(run, value)


def _gauge(metric: str, unit: float = 1, **labels: str) -> Value:
    def value(reading: MetricsSnapshot) -> float | None:
        found = reading.value(metric, **labels)
        return None if found is None else found / unit

    return lambda run: gauge(run, value)


def _count(rows: Sequence[Record], *, failed: bool) -> int:
    return sum(record.failed == failed for record in rows)
