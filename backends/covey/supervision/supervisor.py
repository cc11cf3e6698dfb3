"""Follows the processes of one server: kills those that hang, and reloads the models whose process has ended.

The launcher runs one supervisor for each server that it starts, as soon as the server's process exists.

Triton never restarts a model's process, and keeps saying that the model is ready. A model that a user unloaded is left
alone, except for a target, without which no request is served.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from covey.contracts.errors import CoveyError
from covey.supervision import processes
from covey.supervision.control import FAILED, LOAD_SECONDS, LOADING, READY, UNLOADED, Control, ControlError
from covey.supervision.health import Health
from covey.supervision.revival import Revival
from covey.supervision.rules import DRAFTER, MOSTLY_IDLE, TARGET, Loads, broken

LOOK_SECONDS = 0.25
FIND_SECONDS = 2.0  # between searches for processes while every model has its process
RELOAD_AFTER_SECONDS = 2.0  # after which a model that failed to load, or an unloaded target, is loaded again
LOST_SECONDS = 10.0  # for Triton to notice that a loading model's process has ended
UNSEEN_SECONDS = 60.0  # for a loading model to have a process at all
ASK_SECONDS = 2.0  # timeout of a question which models are ready
PUBLIC = "covey"  # the model whose streams break when its process ends
_BACKEND = re.compile(r'^\s*backend:\s*"(\w+)"', re.MULTILINE)
log = logging.getLogger("covey.supervision")

States = Callable[[], Mapping[str, str]]
NOBODY = 0


def roles(repository: Path, models: Iterable[str]) -> dict[str, str]:
    """Return the backend of each of the models that has processes; ensembles have none."""
    found = ((name, _BACKEND.search((repository / name / "config.pbtxt").read_text())) for name in models)
    return {name: backend[1] for name, backend in found if backend}


class Supervisor:
    """Owns one server's health records. One thread looks; other methods say which threads may call them."""

    def __init__(
        self,
        control: Control,
        server: int,
        roles: Mapping[str, str],
        *,
        starting: States | None = None,
        load_seconds: float = LOAD_SECONDS,
        died: Callable[[bool], None] = lambda _server: None,
    ) -> None:
        """`roles` maps each model to bring back to its backend. `starting` returns the models' states while the server
        starts and does not answer; it is None if the server has started already. A load may take `load_seconds`. When
        the public model's process ends, the supervisor's thread calls `died` with whether the whole server has
        ended."""
        self._control, self._server, self._roles, self._died = control, server, dict(roles), died
        self._quick = replace(control, seconds=ASK_SECONDS)
        self._states: States = starting or self._quick.states
        self._starting = starting is not None
        self._draining = False
        self._loads = Loads(load_seconds)
        self._healths: dict[int, Health] = {}  # by pidfd; the server's as well
        self._last = dict.fromkeys(roles, NOBODY)  # each model's last process that ended, until another is followed
        self._absent: dict[tuple[str, str], float] = {}  # (model without a process, its state) -> seconds so far
        self._seen: set[str] = set()  # loading models that have had a process since their load began
        self._said: dict[str, str] = {}  # Triton's states when it was last asked
        self._found = 0.0  # seconds since the last search for processes
        self.killed: list[str] = []  # names of the processes that were killed, in order
        self._revival = Revival(replace(control, seconds=LOAD_SECONDS), self._lacks)
        self._stopped = threading.Event()
        self._ends = select.poll()
        self._wake, self._waker = os.pipe()
        self._ends.register(self._wake, select.POLLIN)
        self._follow(processes.SERVER, server)
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Note that the server has started: from now on, reload models whose process ends. Any thread."""
        self._states, self._starting = self._quick.states, False

    def drain(self) -> None:
        """Note that the server drains: from now on, reload only targets and drafters. Any thread."""
        self._draining = True

    def stop(self, seconds: float) -> None:
        """Kill and reload nothing more; reloads under way get `seconds` to end. Any thread but the supervisor's own."""
        self._stopped.set()
        os.write(self._waker, b"x")
        self._thread.join()
        self._revival.stop(seconds)
        for fd in (self._wake, self._waker, *self._healths):
            os.close(fd)

    # ---- its thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        blind, looked = False, time.monotonic()
        while not self._stopped.is_set():
            try:
                self._take_ends()
                now = time.monotonic()
                seconds, looked = min(now - looked, LOOK_SECONDS), now
                self.look(seconds)
                blind = False
            except CoveyError as error:
                if not blind:  # log once: a server that has ended is asked until its end is seen
                    log.warning("cannot ask the server which models are ready: %s", error)
                blind = True
            except Exception:  # every model depends on this thread, so it must go on
                log.exception("cannot look at the processes of the server")
                self._stopped.wait(LOOK_SECONDS)

    def _take_ends(self) -> None:
        """Wait for LOOK_SECONDS, or until the kernel reports that a process has ended."""
        for fd, _event in self._ends.poll(LOOK_SECONDS * 1000):
            if fd == self._wake:
                continue
            self._ends.unregister(fd)
            os.close(fd)
            health = self._healths.pop(fd)
            if health.name in self._roles:
                self._last[health.name] = health.pid
            if health.name in (processes.SERVER, PUBLIC):
                self._note(health.name)

    def _note(self, name: str) -> None:
        """Report a death once: a server that ends takes its models along, and either may be seen first."""
        if self._server:
            gone = name == processes.SERVER or not processes.lives(self._server)
            self._died(gone)
            self._server = NOBODY if gone else self._server

    def look(self, seconds: float) -> None:
        """Check every process, and reload models whose process has ended. Raises ControlError if the server does not
        answer."""
        if not self._server:
            return
        for fd, health in list(self._healths.items()):
            state = LOADING if self._starting and health.name == processes.SERVER else READY
            health.look(seconds, self._said.get(health.name, state), mostly_idle=self._is_mostly_idle(health))
            self._end_if_broken(fd, health)
        self._found += seconds
        if self._found >= FIND_SECONDS or not self._settled():
            self._find(self._found)

    def _settled(self) -> bool:
        """Return whether every model either has its process and is ready, or was unloaded."""
        followed = {health.name for health in self._healths.values()}
        away = {model for model, role in self._roles.items() if self._said.get(model) == UNLOADED and role != TARGET}
        return all(model in away or (model in followed and self._said.get(model) == READY) for model in self._roles)

    def _find(self, seconds: float) -> None:
        """Search for processes, and bring back models that have none.

        A ready model is reloaded only if Triton calls it ready before and after the search. Otherwise it is being
        loaded or unloaded."""
        self._found = 0.0
        seen_to = {model for model in self._roles if self._revival.sees_to(model)}
        before = dict(self._states())
        living = processes.by_model(self._server)
        self._note_loads(before, living)
        followed = {health.pid for health in self._healths.values()}
        for model, pids in living.items():
            for pid in set(pids) - followed:
                self._follow(model, pid)
        absent = {model for model in self._last if self._has_ended(model, living)}
        after = self._states() if any(before.get(model) == READY for model in absent) else before
        known, self._absent = self._absent, {}
        for model in absent:
            state = before.get(model, "")
            self._absent[model, state] = since = known.get((model, state), 0.0) + seconds
            if state == after.get(model, ""):
                self._see_to(model, state, since, under_way=model in seen_to)

    def _note_loads(self, states: Mapping[str, str], living: Mapping[str, list[int]]) -> None:
        for health in self._healths.values():
            if self._said.get(health.name) == LOADING and states.get(health.name) == READY:
                self._loads.succeeded(health.name)
        loading = {model for model, state in states.items() if state == LOADING}
        self._seen = loading & (self._seen | living.keys())
        self._said = dict(states)

    def _see_to(self, model: str, state: str, since: float, *, under_way: bool) -> None:
        """Bring back a model that has been without a process, in this state, for `since` seconds, if that is enough."""
        role = self._roles[model]
        if state == LOADING:
            begun = self._starting or model in self._seen
            if since >= (LOST_SECONDS if begun else LOAD_SECONDS if under_way else UNSEEN_SECONDS):
                self._restart_server_over(model)
        elif not under_way and not self._starting and (role in (TARGET, DRAFTER) or not self._draining):
            again = state == FAILED or (state == UNLOADED and role == TARGET)
            if state == READY or (again and since >= RELOAD_AFTER_SECONDS):
                if model == PUBLIC and self._last[model] == NOBODY:  # its end was not seen
                    self._note(model)
                self._revival.begin(model)

    def _restart_server_over(self, model: str) -> None:
        """Kill the server, so that its launcher restarts it: Triton waits, past every timeout, for a process that ended
        before it reported. A missing drafter stays missing, because requests are served without it."""
        if self._starting or self._roles[model] != DRAFTER:
            log.warning("%s: its process ended while it was loading; restarting the server", model)
            for fd, health in self._healths.items():
                if health.name == processes.SERVER:
                    self._kill(fd)

    def _is_mostly_idle(self, health: Health) -> bool:
        return health.loading > 0 or (not self._starting and self._roles.get(health.name) in MOSTLY_IDLE)

    def _answered(self, health: Health) -> int | None:
        if health.loading:
            return processes.moves(health.pid)
        try:
            return self._control.answered(health.name)
        except ControlError:  # it is being reloaded
            return None

    def _end_if_broken(self, fd: int, health: Health) -> None:
        if health.ended:
            return
        found = broken(health, self._loads)
        if found:
            log.warning("%s %s; killing its process", health.name, found)
            if health.loading:
                self._loads.ended(health.name)
            self._kill(fd)

    def _kill(self, fd: int) -> None:
        """Kill the process by its handle: another process may have its number by now."""
        self._healths[fd].ended = True
        self.killed.append(self._healths[fd].name)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)

    def _follow(self, name: str, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            fd = os.pidfd_open(pid)
            self._healths[fd] = Health(name, pid, self._answered)
            self._ends.register(fd, select.POLLIN)
            if name in self._last:
                self._last[name] = NOBODY

    def _lacks(self, model: str) -> bool:
        """Return whether a model lacks a process; one that died in a call is a zombie, as Triton does not wait for it.
        Any thread may call."""
        return self._has_ended(model, processes.by_model(self._server))

    def _has_ended(self, model: str, living: Mapping[str, list[int]]) -> bool:
        return not living.get(model) or processes.state(self._last[model]) == "Z"
