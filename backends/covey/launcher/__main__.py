"""Runs one server in the foreground until it is stopped: `python -m covey.launcher`. The exit status is 0 after a stop,
1 if the server died too often, and 2 if it could not start."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from covey.contracts.errors import SettingError
from covey.launcher import default_model, front, log
from covey.launcher.errors import ServerDied
from covey.launcher.options import parse, reachable
from covey.launcher.plan import plan
from covey.launcher.process import Server
from covey.launcher.progress import LoadProgress, ready_message, say
from covey.process import cpu
from covey.supervision.restarts import Restarts
from covey_client.running import RunningServer

STOPPED, DIED, NOT_STARTED = 0, 1, 2
LOOK_SECONDS = 0.5
LOG_SECONDS = 1.0  # in which the log gets the server's last words before it was ready


def main(arguments: Sequence[str]) -> int:
    """Run one server and report on the terminal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("covey").setLevel(logging.INFO)
    given = parse(arguments)
    server = Server(given, LoadProgress())
    frontend: front.Front | None = None
    try:
        cpu.check()
        if given.plan is not None:
            say(plan(given, given.plan), sys.stdout)
            return STOPPED
        server.options = default_model.chosen(given)
        if front.wanted(server.options):
            front.with_ports(server.options)  # refuse busy ports before loading anything
        server.start()
        if front.wanted(server.options):
            frontend = front.Front(server.options, server.deaths)
            frontend.start()
    except (SettingError, OSError) as error:
        server.kill()
        say(f"covey: cannot start: {error}")
        return NOT_STARTED
    except KeyboardInterrupt:
        server.kill()
        say("covey: stopped while loading")
        return NOT_STARTED
    if server.swept:
        say(f"removed {len(server.swept)} shared memory regions of killed servers")
    options = server.options if frontend is None else frontend.options
    ports = options.grpc_port, options.http_port, options.metrics_port
    fronts = options.front_http_port or 0, options.front_grpc_port or 0
    running = RunningServer(reachable(options.host), *ports, os.getpid(), *fronts)
    running.write()
    say(ready_message(options, str(server.log_file), server.left_out, _serving(server)), sys.stdout)
    try:
        return _serve(server, frontend)
    finally:
        running.forget()
        if frontend is not None:
            frontend.stop()


def _serving(server: Server) -> str:
    until = time.monotonic() + LOG_SECONDS
    while not (said := log.serving(server.log_text())) and time.monotonic() < until:
        time.sleep(LOG_SECONDS / 20)
    return said


def _serve(server: Server, frontend: front.Front | None) -> int:
    restarts = Restarts(time.monotonic)
    try:
        while True:
            try:
                server.check()
                if frontend is not None:
                    frontend.check()
                time.sleep(LOOK_SECONDS)
            except ServerDied as error:
                say(f"covey: {error}")
                server.kill()
                if not _started_again(server, restarts, frontend.check if frontend is not None else lambda: None):
                    return DIED
    except KeyboardInterrupt:
        pass
    try:
        say("draining: waiting for requests in flight; Ctrl-C again stops at once")
        if frontend is not None:
            frontend.drain()
        began, ran = time.monotonic(), server.running
        if server.stop():
            say("stopped; no request was broken off" if ran else "stopped")  # an ended server has lost its requests
        else:
            perhaps = "perhaps " if server.runs is None else ""
            say(f"stopped {perhaps}with requests in flight after {time.monotonic() - began:.0f} s")
    except KeyboardInterrupt:
        server.kill()
    return STOPPED


def _started_again(server: Server, restarts: Restarts, meanwhile: Callable[[], None]) -> bool:
    """Start the server again on the same ports. Return False if it has died too often. Streams break, but clients can
    resume them."""
    while (rest := restarts.rest()) is not None:
        say(f"covey: starting tritonserver again in {rest:g} s")
        time.sleep(rest)
        try:
            server.start(meanwhile)
        except (SettingError, OSError) as error:  # such as a full disk
            say(f"covey: cannot start again: {error}")
            continue
        say("covey: ready again")
        return True
    say("covey: given up")
    return False


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
