"""Computes the numbers of a run: totals, a row for each service level, and time series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from covey_client.rates import MetricsSnapshot, Span
from loadtest.charts import Points
from loadtest.levels import Level
from loadtest.records import Record, RecordedRun
from loadtest.traffic import UNFINISHED

WIDTHS = (1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
BINS = 30
APART = 2.0  # seconds between readings whose difference is a point


@dataclass(frozen=True)
class Figure:
    """Holds one number of a run; its value is None where the run has none."""

    name: str
    unit: str
    value: float | None
    higher_is_better: bool | None = None  # None: neither


def quantile(values: Sequence[float], q: float) -> float | None:
    """Return the quantile by linear interpolation between the two nearest; None for no values."""
    return float(np.quantile(values, q)) if values else None


def level_of(run: RecordedRun, record: Record) -> Level:
    return next(level for level in run.levels if level.name == record.level)


def attained(run: RecordedRun, record: Record) -> bool:
    """Return whether a request that ended met its level; a failed one did not."""
    level = level_of(run, record)
    return record.finished and level.meets_ttft(record.ttft) and level.meets_tpot(record.tpot)


def quantile_ms(rows: Sequence[Record], name: str, percentile: float) -> float | None:
    """Return the quantile of that time of the requests that finished and have it, in milliseconds."""
    found = (getattr(record, name) for record in rows if record.finished)
    return _ms(quantile([seconds for seconds in found if seconds is not None], percentile / 100))


def share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def ended(run: RecordedRun) -> list[Record]:
    return [record for record in run.records if record.outcome != UNFINISHED]


def totals(run: RecordedRun) -> list[Figure]:
    over = ended(run)
    finished = [record for record in over if record.finished]
    good = [record for record in finished if attained(run, record)]
    read = sum(record.input_tokens for record in finished)
    busy = max([run.seconds, *(record.end for record in finished)])  # answers that ended after the load did
    return [
        Figure("requests finished", "", len(finished), True),
        Figure("requests failed", "", sum(record.failed for record in over), False),
        Figure("requests unfinished at the end", "", len(run.records) - len(over)),
        Figure("throughput", "requests/s", len(finished) / busy, True),
        Figure("throughput", "output tokens/s", sum(record.output_tokens for record in finished) / busy, True),
        Figure("goodput", "output tokens/s", sum(record.output_tokens for record in good) / busy, True),
        Figure("SLO attainment", "%", percent(share([attained(run, record) for record in over])), True),
        *(Figure(f"TTFT p{p}", "ms", quantile_ms(finished, "ttft", p), False) for p in (50, 95, 99)),
        *(Figure(f"TPOT p{p}", "ms/token", quantile_ms(finished, "tpot", p), False) for p in (50, 95)),
        Figure("end to end p95", "ms", quantile_ms(finished, "e2e", 95), False),
        Figure("acceptance", "%", acceptance(finished), True),
        Figure("prompt tokens reused", "%", percent(sum(r.reused_tokens for r in finished) / read if read else None)),
        Figure("KV pool in use, at most", "%", kv_most(run)),
        Figure("latest request behind its time", "ms", _ms(max((r.lag for r in run.records), default=None)), False),
    ]


def by_level(run: RecordedRun, level: Level) -> dict[str, float | None]:
    over = [record for record in ended(run) if record.level == level.name]
    return {
        "requests": len(over),
        "failed": sum(record.failed for record in over),
        **{f"{name.upper()} p{p}, ms": quantile_ms(over, name, p) for name in ("ttft", "tpot") for p in (50, 95)},
        "TTFT met, %": percent(share([record.finished and level.meets_ttft(record.ttft) for record in over])),
        "TPOT met, %": percent(share([record.finished and level.meets_tpot(record.tpot) for record in over])),
        "both met, %": percent(share([attained(run, record) for record in over])),
    }


def by_topic(run: RecordedRun, topic: str) -> dict[str, float | None]:
    """Return figures by kind of prompt: speculation fares differently on each."""
    finished = [record for record in run.records if record.finished and record.topic == topic]
    return {
        "requests": len(finished),
        "output tokens": sum(record.output_tokens for record in finished),
        "TTFT p50, ms": quantile_ms(finished, "ttft", 50),
        "TPOT p50, ms": quantile_ms(finished, "tpot", 50),
        "drafted tokens": sum(record.draft_tokens for record in finished),
        "accepted, %": acceptance(finished),
    }


def topics(run: RecordedRun) -> list[str]:
    return sorted({record.topic for record in run.records if record.finished})


def acceptance(rows: Sequence[Record]) -> float | None:
    """Return accepted over drafted tokens, in percent; None if nothing was drafted."""
    drafted = sum(record.draft_tokens for record in rows)
    return 100 * sum(record.accepted_draft_tokens for record in rows) / drafted if drafted else None


def kv_most(run: RecordedRun) -> float | None:
    """Return the largest share of the KV pool that was in use at any look, in percent."""
    shares = []
    for reading in run.readings:
        blocks = reading.value("covey_kv_blocks")
        if blocks:
            shares.append(100 * (reading.value("covey_kv_blocks", state="used") or 0.0) / blocks)
    return max(shares, default=None)


def errors(run: RecordedRun) -> list[tuple[str, int]]:
    """Return what failed requests said, most frequent first."""
    return Counter(f"{record.outcome}: {record.error}" for record in run.records if record.failed).most_common(10)


def width(run: RecordedRun) -> float:
    """Return the seconds of a point in time series of requests."""
    return next((width for width in WIDTHS if run.seconds / width <= BINS), WIDTHS[-1])


def over_time(run: RecordedRun, value: Callable[[Sequence[Record]], float | None], *, at_end: bool = True) -> Points:
    """Return `value` of the requests that ended (or were sent) in each bin, at its middle or the run's end."""
    step = width(run)
    bins: dict[int, list[Record]] = {}
    for record in ended(run):
        bins.setdefault(int((record.end if at_end else record.at) // step), []).append(record)
    end = max([run.seconds - 1e-6, *(record.end for record in ended(run))])
    points: Points = []
    for index in range(int(end // step) + 1):
        found = value(bins.get(index, []))
        if found is not None:
            points.append((min((index + 0.5) * step, end), found))
    return points


def streamed(run: RecordedRun, records: Sequence[Record]) -> Points:
    """Return the output tokens a second of those requests. A request's tokens are spread evenly from its first to its
    last: counted at its end, they would all fall on that moment."""
    step = width(run)
    end = max([run.seconds - 1e-6, *(record.end for record in records)])
    edges = step * np.arange(int(end // step) + 2)
    tokens = np.zeros(len(edges) - 1)
    for record in records:
        first = record.at + (record.ttft or 0.0)
        tokens += record.output_tokens * np.diff(np.interp(edges, (first, max(record.end, first + 1e-6)), (0.0, 1.0)))
    middles = np.minimum(edges[:-1] + step / 2, end)
    return list(zip(middles.tolist(), (tokens / step).tolist()))


def counted(run: RecordedRun, value: Callable[[Span], float | None]) -> Points:
    """Return `value` between readings at least `APART` seconds apart, at the middle."""
    points: Points = []
    before: MetricsSnapshot | None = None
    for reading in run.readings:
        if before is None:
            before = reading
        elif reading.at - before.at >= APART:
            found = value(Span(before, reading))
            if found is not None:
                points.append(((before.at + reading.at) / 2, found))
            before = reading
    return points


def gauge(run: RecordedRun, value: Callable[[MetricsSnapshot], float | None]) -> Points:
    found = ((reading.at, value(reading)) for reading in run.readings)
    return [(at, number) for at, number in found if number is not None]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def percent(part: float | None) -> float | None:
    return None if part is None else 100 * part
