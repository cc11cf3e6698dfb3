"""Locust's own command line and web page: `locust -f loadtest/locustfile.py --url HOST:8001 --shape poisson:4`.

The same traffic as `python -m loadtest`, without its report; an open shape takes its end from --run-time, or an hour.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gevent
from locust import events

from covey.contracts.errors import SettingError
from loadtest import options, users
from loadtest.traffic import Traffic
from loadtest.users import ArrivalsUser, CoveyUser

__all__ = ["ArrivalsUser", "CoveyUser"]
HOUR = 3600.0


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add(parser: Any) -> None:
    options.add(parser)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare(environment: Any, **_more: Any) -> None:
    given = environment.parsed_options
    try:
        plan = options.plan(given, seconds=float(given.run_time or HOUR), grace=0.0)
    except SettingError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        sys.exit(2)
    began = [time.monotonic()]

    def start(**_more: Any) -> None:
        began[0] = time.monotonic()

    environment.events.test_start.add_listener(start)
    environment.traffic = Traffic(
        plan,
        lambda _record: None,
        environment.events.request.fire,
        users.times(environment),
        clock=lambda: time.monotonic() - began[0],
        pause=gevent.sleep,
    )
    environment.user_classes = users.classes(plan)


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def _nothing_came(environment: Any, **_more: Any) -> None:
    """Fail a run in which no request has ended: it has measured nothing."""
    if environment.parsed_options.headless and not environment.stats.num_requests:
        print("loadtest: no request ended in this time: a longer --run-time, or shorter answers?", file=sys.stderr)
        environment.process_exit_code = 1
