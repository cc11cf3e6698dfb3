"""Locust's users, each of which needs its environment's attribute `traffic`. Importing this has grpc use gevent."""

from __future__ import annotations

from typing import Any, ClassVar

import gevent
from grpc.experimental.gevent import init_gevent  # type: ignore[import-untyped]
from locust import User, constant, task

from loadtest.options import Plan
from loadtest.traffic import PROTOCOL, Time

init_gevent()  # before the first channel, or every stream blocks every greenlet


class CoveyUser(User):  # type: ignore[misc]  # Locust has no types
    """A closed user, which asks, reads the answer and asks again."""

    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        if self.environment.traffic.stopped:
            gevent.sleep(0.1)
        else:
            self.environment.traffic.closed()


class ArrivalsUser(User):  # type: ignore[misc]
    """Sends all of an open shape's arrivals: requests come when they are due, whether or not earlier ones have
    ended."""

    fixed_count: ClassVar[int] = 1
    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator]
    def follow(self) -> None:
        self.environment.traffic.follow(gevent.spawn)
        while True:  # the arrivals are over, the run is not
            gevent.sleep(1)


def times(environment: Any) -> Time:
    """Return a function that adds a time to its own row only: Locust's aggregate counts a request by its event."""
    return lambda name, ms: environment.stats.get(name, PROTOCOL).log(ms, 0)


def classes(plan: Plan) -> list[type[User]]:
    """Return the users of this run's shape."""
    return [CoveyUser] if plan.shape.users else [ArrivalsUser]


def count(plan: Plan) -> int:
    return plan.shape.users or 1
