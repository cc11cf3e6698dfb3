"""Offers one load from several processes: a master waits for workers, tells them when, and writes what each of them
measured into one folder. Users and their messages are Locust's own."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import STATE_MISSING, MasterRunner

from covey.contracts.errors import SettingError
from loadtest import users
from loadtest.options import Plan
from loadtest.records import Record, Recorder
from loadtest.run import check_ready, clock_from_now, drain, look, on_signals, wait
from loadtest.traffic import Tally, Traffic

RECORD, STOP, DONE = "covey record", "covey stop", "covey done"  # messages beside Locust's own
WAIT_SECONDS = 30.0  # beyond the grace, for the last records of workers
LINE_SECONDS = 10.0


def master(plan: Plan, folder: Path, address: tuple[str, int]) -> bool:
    """Have the workers offer the load; whether all of them did, for as long as it was to be, and every request that
    they counted came here. Raises SettingError where no server is ready."""
    check_ready(plan)
    environment = Environment(user_classes=users.classes(plan))
    try:
        runner = environment.create_master_runner(address[0] or "*", address[1])
    except RPCError as error:
        raise SettingError(
            f"master: got {address[0]}:{address[1]}, allowed: an address that is free here: {error}"
        ) from None
    interrupted = on_signals()
    counted: dict[str, int] = {}  # requests of workers that are done, by their own count
    tally = Tally()
    try:
        if not _all_there(runner, plan.parts, interrupted):
            raise SettingError("interrupted before all workers were there")
        with Recorder(folder, plan.described | {"workers": plan.parts}, plan.levels) as recorder:

            def record(msg: Any, **_more: Any) -> None:
                found = Record(**msg.data)
                tally.sent += 1
                tally.add(found)
                recorder.request(found)

            runner.register_message(RECORD, record)
            runner.register_message(DONE, lambda msg, **_more: counted.update({msg.node_id: msg.data}))
            clock = clock_from_now()
            looking = gevent.spawn(look, plan, recorder, clock)
            starting = gevent.spawn(runner.start, users.count(plan), users.count(plan))
            wait(plan, tally, clock, interrupted)
            ran, ended = clock(), not interrupted.is_set()
            runner.send_message(STOP)
            _wait_for(lambda: _there(runner) <= counted.keys(), plan.grace + WAIT_SECONDS)
            looking.kill()
            starting.kill()
            whole = len(counted) == plan.parts and sum(counted.values()) == tally.sent
            if not whole:
                print(f"workers that said what they did: {len(counted)} of {plan.parts}", file=sys.stderr)
            recorder.end(min(ran, plan.seconds), ended and whole)
    finally:
        runner.quit()
    return ended and whole


def worker(plan: Plan, address: tuple[str, int]) -> None:
    """Offer a part of the load, from when the master says so until it does. Raises SettingError where there is none."""
    environment = Environment(user_classes=users.classes(plan))
    made: list[Traffic] = []

    def record(found: Record) -> None:
        runner.send_message(RECORD, asdict(found))

    def start(**_more: Any) -> None:
        part = replace(plan, part=runner.worker_index % plan.parts)
        fire = environment.events.request.fire
        environment.traffic = Traffic(part, record, fire, clock=clock_from_now(), pause=gevent.sleep)
        made.append(environment.traffic)

    def stop(**_more: Any) -> None:
        sent = 0
        for traffic in made:
            drain(plan.grace, traffic)
            sent += traffic.tally.sent
        print(f"sent {sent} requests", file=sys.stderr, flush=True)
        runner.send_message(DONE, sent)

    environment.events.test_start.add_listener(start)
    try:
        socket.getaddrinfo(address[0] or "127.0.0.1", address[1])  # Locust asks again and again for a name that is none
        runner = environment.create_worker_runner(address[0] or "127.0.0.1", address[1])
    except (ConnectionError, socket.gaierror) as error:
        raise SettingError(f"no master at {address[0]}:{address[1]}: {error}") from None
    runner.register_message(STOP, stop, concurrent=True)
    interrupted = on_signals()
    leaving = gevent.spawn(_leave, environment, interrupted)
    runner.greenlet.join()  # until the master sends it home
    leaving.kill()
    for traffic in made:
        traffic.close()


def _leave(environment: Environment, interrupted: Event) -> None:
    interrupted.wait()
    environment.events.quitting.fire(environment=environment)
    environment.runner.quit()


def _all_there(runner: MasterRunner, parts: int, interrupted: Event) -> bool:
    """Wait for the workers, without end; False where somebody interrupted it."""
    logging.getLogger("locust.runners").setLevel(logging.WARNING)
    said, line = -1, 0.0
    while len(runner.clients.ready) < parts and not interrupted.wait(0.1):
        if len(runner.clients.ready) != said or time.monotonic() > line:
            said, line = len(runner.clients.ready), time.monotonic() + LINE_SECONDS
            print(f"{said} of {parts} workers are there", file=sys.stderr, flush=True)
    return not interrupted.is_set()


def _there(runner: MasterRunner) -> set[str]:
    """Return the workers that are still alive."""
    return {client.id for client in runner.clients.all if client.state != STATE_MISSING}


def _wait_for(true: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        gevent.sleep(0.05)
