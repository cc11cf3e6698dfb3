"""Runs a load test without a page: starts users, looks at the metrics port every second, shows progress, and writes
the run's folder."""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gevent
from gevent.event import Event
from locust.env import Environment
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from covey.contracts.errors import SettingError
from covey_client import status
from covey_client.errors import CoveyClientError
from covey_client.rates import MetricsSnapshot
from loadtest import users
from loadtest.options import Plan
from loadtest.records import Recorder
from loadtest.traffic import Tally, Traffic

LOOK_SECONDS = 1.0
LINE_SECONDS = 10.0  # between lines of progress where there is no terminal


def run(plan: Plan, folder: Path) -> bool:
    """Offer the load; return whether it ran to its end. Raises SettingError if no server is ready."""
    check_ready(plan)
    clock = clock_from_now()
    environment = Environment()
    with Recorder(folder, plan.described, plan.levels) as recorder:
        told = environment.events.request.fire, users.times(environment)
        traffic = Traffic(plan, recorder.request, *told, clock=clock, pause=gevent.sleep)
        environment.traffic = traffic
        environment.user_classes = users.classes(plan)
        runner = environment.create_local_runner()
        interrupted = on_signals()
        looking = gevent.spawn(look, plan, recorder, clock)
        runner.start(users.count(plan), spawn_rate=users.count(plan))
        try:
            wait(plan, traffic.tally, clock, interrupted)
            ran, complete = clock(), not interrupted.is_set()
            drain(plan.grace, traffic)
        finally:
            looking.kill()
            runner.quit()
            traffic.close()
        recorder.end(min(ran, plan.seconds), complete)
    return complete


def clock_from_now() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


def check_ready(plan: Plan) -> None:
    try:
        ready = status.read(plan.http_url, plan.metrics_url).ready
    except CoveyClientError as error:
        reason = str(error).removeprefix(f"{plan.http_url}: ")
        raise SettingError(
            f"no server at {plan.http_url}: {reason} (`make serve` starts one; with ports of its own, say them: "
            "HTTP_PORT= and so on to `make loadtest`, else --http-url and --url)"
        ) from None
    if not ready:
        raise SettingError(f"the server at {plan.http_url} is not ready")


def look(plan: Plan, recorder: Recorder, clock: Callable[[], float]) -> None:
    while True:
        before = clock()
        try:
            samples = status.read(plan.http_url, plan.metrics_url).samples
        except CoveyClientError:
            samples = ()  # a gap in the pictures
        if samples:
            recorder.reading(MetricsSnapshot((before + clock()) / 2, samples))
        gevent.sleep(max(0.1, LOOK_SECONDS - (clock() - before)))


def on_signals() -> Event:
    """Return an event that the first Ctrl-C or SIGTERM sets; the second ends the process as usual."""
    stop = Event()

    def first(number: int) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, first, number)
    return stop


def wait(plan: Plan, tally: Tally, clock: Callable[[], float], interrupted: Event) -> None:
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} s {task.fields[figures]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        shown = bar.add_task("load", total=plan.seconds, figures="")
        line = LINE_SECONDS
        while clock() < plan.seconds and not interrupted.wait(min(0.5, max(0.01, plan.seconds - clock()))):
            bar.update(shown, completed=clock(), figures=figures(tally, clock()))
            if not console.is_terminal and clock() >= line:
                line += LINE_SECONDS
                print(f"{clock():6.0f}/{plan.seconds:.0f} s {figures(tally, clock())}", file=sys.stderr, flush=True)
    if interrupted.is_set():
        print("interrupted: the report covers what ran", file=sys.stderr, flush=True)


def drain(grace: float, traffic: Traffic) -> None:
    """Wait for requests in flight, and cancel those that take longer."""
    traffic.stop()
    until = time.monotonic() + grace
    while traffic.tally.in_flight and time.monotonic() < until:
        gevent.sleep(0.05)
    traffic.give_up()
    gevent.sleep(0.2)  # cancelled requests write their line


def figures(tally: Tally, seconds: float) -> str:
    """Return one line of progress."""
    ttft = f", TTFT p50 {1000 * statistics.median(tally.ttfts):.0f} ms" if tally.ttfts else ""
    return (
        f"{tally.done} done, {tally.failed} failed, {tally.in_flight} in flight, "
        f"{tally.tokens / max(seconds, 1e-9):.1f} tokens/s{ttft}"
    )
