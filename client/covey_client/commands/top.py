"""`covey top`: what a server does, live, from its metrics port. Ctrl-C ends it."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from covey_client import status
from covey_client.commands import flags
from covey_client.errors import CoveyClientError, InvalidRequest
from covey_client.rates import MetricsSnapshot, Span

WINDOW_SECONDS = 10.0  # that rates and quantiles are taken over
PHASES = ("plan", "draft", "pass", "transport", "commit")
SPEC = "covey_spec_decode_num"
SLO = "covey_slo"
NOTHING = "–"


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser("top", help="live figures", description="Watch a server; Ctrl-C ends it.")
    flags.add_grpc_url(parser)
    flags.add_http_url(parser)
    flags.add_metrics_url(parser)
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks")
    parser.add_argument("--once", action="store_true", help="two looks, one view, no live screen")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if not 0.1 <= given.every <= 60:
        raise InvalidRequest(f"every: got {given.every:g}, allowed: 0.1 to 60")
    http_url = flags.http_url(given)
    console = Console()

    def look() -> status.Status:
        return status.read(http_url, given.metrics_url)

    views = watch(look, http_url, time.monotonic, time.sleep, given.every)
    first = next(views)  # raises where nobody answers
    if given.once or not console.is_terminal:
        console.print(next(views))
        return 0
    with Live(first, console=console, screen=True, auto_refresh=False) as live:
        for view in views:
            live.update(view, refresh=True)
    return 0


def watch(
    look: Callable[[], status.Status],
    name: str,
    clock: Callable[[], float],
    pause: Callable[[float], object],
    every: float,
) -> Iterator[RenderableType]:
    """Yield views for ever. The first look must succeed; later ones may fail, and then the view says so."""
    readings: deque[MetricsSnapshot] = deque()
    found, problem = look(), ""
    while True:
        if found.samples:
            readings.append(MetricsSnapshot(clock(), found.samples))
            while len(readings) > 2 and readings[1].at <= readings[-1].at - WINDOW_SECONDS:
                readings.popleft()
        shown = f"{name} (emulated)" if found.emulated else name
        yield view(shown, found.ready, Span(readings[0], readings[-1]) if readings else None, problem)
        pause(every)
        try:
            found, problem = look(), ""
        except CoveyClientError as error:
            readings.clear()
            found, problem = status.Status(False, None), str(error)


def view(name: str, ready: bool, span: Span | None, problem: str = "") -> RenderableType:
    """Return one screen."""
    head = Text.assemble(
        ("covey ", "bold"), name, "  ", ("ready", "green") if ready else ("not ready", "red"), ("  Ctrl-C ends", "dim")
    )
    if span is None:
        said = problem or "no figures: the metrics port does not answer, or nothing has been served"
        return Group(head, Text(said, "yellow"))
    over = Text(f"over the last {span.seconds:.0f} s", "dim")
    parts: list[RenderableType] = [head, over, Text(), _rates(span), Text(), _drafters(span), Text()]
    parts += [_objectives(span), Text()] if span.after.by(f"{SLO}_requests_total", "slo_class") else []
    return Group(*parts, _latency(span))


def _rates(span: Span) -> Table:
    now = span.after
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(style="dim")
        table.add_column(justify="right", min_width=10)
    figures = [
        ("requests", _number(span.rate("covey_requests_total"), "/s")),
        ("output", _number(span.rate("covey_generation_tokens_total"), " tok/s")),
        ("prefill", _number(span.rate("covey_prefill_tokens_total"), " tok/s")),
        ("running", _number(now.value("covey_requests_running"), "")),
        ("waiting", _number(now.value("covey_requests_waiting"), "")),
        ("refused", _number(span.rate("covey_requests_total", outcome="refused"), "/s")),
        ("drafted", _number(span.rate(f"{SPEC}_draft_tokens_total"), " tok/s")),
        ("accepted", _number(span.rate(f"{SPEC}_accepted_tokens_total"), " tok/s")),
        ("acceptance", _percent(span.ratio(f"{SPEC}_accepted_tokens_total", f"{SPEC}_draft_tokens_total"))),
        ("depth", _number(span.ratio(f"{SPEC}_draft_tokens_total", f"{SPEC}_drafts_total"), " tok")),
        ("accepted/tree", _number(span.ratio(f"{SPEC}_accepted_tokens_total", f"{SPEC}_drafts_total"), " tok")),
        ("tokens/round", _number(span.ratio("covey_generation_tokens_total", "covey_rounds_total"), "")),
        ("KV in use", _percent(_kv_share(now))),
        ("prefix reuse", _percent(span.ratio("covey_prefix_cache_hit_tokens_total", "covey_prompt_tokens_total"))),
        ("blocks gained", _number(now.value("covey_kv_blocks_gained"), "")),
        ("preempted", _number(span.rate("covey_preemptions_total"), "/s")),
    ]
    for index in range(0, len(figures), 3):
        table.add_row(*(cell for figure in figures[index : index + 3] for cell in figure))
    return table


def _drafters(span: Span) -> Table:
    """Return a table with a line for each drafter, in memory or not."""
    table = Table("drafter", box=None, pad_edge=False)
    for head in ("drafted", "acceptance", "depth", "memory", ""):
        table.add_column(head, justify="right", min_width=10)
    drafted, accepted, trees = (
        span.grew_by(f"{SPEC}_{what}_total", "drafter") for what in ("draft_tokens", "accepted_tokens", "drafts")
    )
    memory = span.after.by("covey_drafter_resident_bytes", "drafter")
    resident = span.after.by("covey_drafter_resident", "drafter")
    for name in sorted(drafted.keys() | memory.keys()):
        tokens, drafts = drafted.get(name, 0.0), trees.get(name, 0.0)
        table.add_row(
            name,
            _number(tokens / span.seconds if span.seconds else None, " tok/s"),
            _percent(accepted.get(name, 0.0) / tokens if tokens else None),
            _number(tokens / drafts if drafts else None, " tok"),
            _number(memory[name] / 2**20 if name in memory else None, " MiB"),
            "" if resident.get(name, 1.0) else "unloaded",
        )
    return table


def _objectives(span: Span) -> Table:
    """Return a table with a line for each class of latency objectives that requests have asked for."""
    table = Table("class", box=None, pad_edge=False)
    for head in ("TTFT", "TPOT", "met", "goodput", "missed", "refused", "unfinished"):
        table.add_column(head, justify="right")
    good = span.grew_by(f"{SLO}_good_tokens_total", "slo_class")
    for name in sorted(span.after.by(f"{SLO}_requests_total", "slo_class")):
        grown = {
            outcome: span.grew(f"{SLO}_requests_total", slo_class=name, outcome=outcome) or 0.0
            for outcome in ("met", "missed", "refused", "unfinished")
        }
        known = sum(grown.values())
        table.add_row(
            name,
            *(_ms(span.after.value(f"{SLO}_target_seconds", slo_class=name, of=of)) for of in ("ttft", "tpot")),
            _percent(grown["met"] / known if known else None),
            _number(good.get(name, 0.0) / span.seconds if span.seconds else None, " tok/s"),
            *(_plain(grown[outcome]) for outcome in ("missed", "refused", "unfinished")),
        )
    return table


def _latency(span: Span) -> Group:
    latency = Table("latency", "p50", "p95", "p99", box=None, pad_edge=False)
    for label, name in (
        ("first token (TTFT)", "covey_time_to_first_token_seconds"),
        ("a token (TPOT)", "covey_time_per_output_token_seconds"),
        ("whole request", "covey_request_seconds"),
    ):
        latency.add_row(label, *(_ms(span.quantile(name, q)) for q in (0.5, 0.95, 0.99)))
    rounds = span.grew("covey_rounds_total")
    grown = span.grew_by("covey_round_seconds_total", "phase")
    whole = sum(grown.values())
    phases = Table("a round", "ms", "", box=None, pad_edge=False)
    for phase in sorted(grown, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES)):
        part = grown[phase] / whole if whole else 0.0
        phases.add_row(phase, _plain(1000 * grown[phase] / rounds if rounds else None), "█" * round(30 * part))
    failing = {name: count for name, count in span.grew_by("covey_drafter_failures_total", "drafter").items() if count}
    parts: list[RenderableType] = [latency, Text(), phases]
    if failing:
        said = ", ".join(f"{name} {count:.0f}" for name, count in sorted(failing.items()))
        parts += [Text(), Text(f"drafter failures: {said}", "red")]
    return Group(*parts)


def _kv_share(reading: MetricsSnapshot) -> float | None:
    whole = reading.value("covey_kv_blocks")
    return (reading.value("covey_kv_blocks", state="used") or 0.0) / whole if whole else None


def _number(value: float | None, unit: str) -> str:
    return NOTHING if value is None else f"{_plain(value)}{unit}"


def _percent(part: float | None) -> str:
    return NOTHING if part is None else f"{100 * part:.1f} %"


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{_plain(1000 * seconds)} ms"


def _plain(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"
