"""Brings back the models whose process died and that nobody else brings back.

Triton never restarts the process of a model and goes on saying that the model is ready. The orchestrator has target and
drafters reloaded. All other models, its own among them, are looked after from here: the kernel says at once that one of
their processes has ended. A model that somebody unloads is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import threading
from collections.abc import Callable
from dataclasses import replace

from covey import profile
from covey.errors import CoveyError, StubDead
from covey.server import processes
from covey.server.control import LOAD_SECONDS, Control
from covey.server.options import ORCHESTRATOR, Options
from covey.tritonio.supervisor import Supervisor

LOOK_SECONDS = 0.5  # between two looks for the processes of models that are being loaded or were unloaded
ENSEMBLE = re.compile(r'^\s*platform:\s*"ensemble"', re.MULTILINE)
TARGET = "target"
SERVER = "tritonserver"
NOBODY = 0
log = logging.getLogger("covey.revival")


def not_the_orchestrators(options: Options, models: tuple[str, ...]) -> tuple[str, ...]:
    """The `models` that have processes and that the orchestrator does not have reloaded."""
    settings = options.deployment()
    named = profile.targets(settings, profile.find(options.profile))
    reloaded = {TARGET, *(f"{TARGET}_{name}" for name in named), *drafters(options)}
    repository = options.repository_folder()
    return tuple(
        name
        for name in models
        if name not in reloaded and not ENSEMBLE.search((repository / name / "config.pbtxt").read_text())
    )


def drafters(options: Options) -> set[str]:
    """Of all targets."""
    settings = options.deployment()
    named = profile.targets(settings, profile.find(options.profile))
    return {*settings.speculation.drafters, *(name for _, own in named.values() for name in own.speculation.drafters)}


class Revival:
    """Watches some models of one running server until it is stopped."""

    def __init__(
        self,
        control: Control,
        server: int,
        models: tuple[str, ...],
        died: Callable[[bool], None] = lambda _server: None,
    ) -> None:
        """`died` is told, at once and on this one's thread, when the public model's process has ended, and whether all
        of the server has."""
        self._control = control
        self._server = server
        self._died = died
        self._lost = dict.fromkeys(models, NOBODY)  # model -> the process of it that ended; models to look for
        self._watched: dict[int, tuple[str, int]] = {}  # pidfd -> model, process; the server's too
        self._ended = False  # the server has
        self._supervisor = Supervisor(replace(control, seconds=LOAD_SECONDS), self._came_back)
        self._stopped = threading.Event()
        self._wake, self._waker = os.pipe()
        self._ends = select.poll()
        self._ends.register(self._wake, select.POLLIN)
        self._follow(SERVER, server)
        self._thread = threading.Thread(target=self._run, name="revival", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Bring nothing more back. Waits for a reload that is under way, at most `seconds` long: Triton may crash when
        it unloads a model that is being loaded."""
        self._stopped.set()
        os.write(self._waker, b"x")
        self._thread.join()
        self._supervisor.stop(seconds)
        for fd in (self._wake, self._waker, *self._watched):
            os.close(fd)

    def _run(self) -> None:
        silent = False
        while not self._stopped.is_set():
            try:
                self._turn()
                silent = False
            except CoveyError as error:
                if not silent:  # once: a server that has ended is asked twice a second until somebody notices
                    log.warning("the server does not say which models are ready: %s", error)
                silent = True
            except Exception:  # nothing may end the thread that all models depend on
                log.exception("models whose process ended could not be looked for")
                self._stopped.wait(LOOK_SECONDS)

    def _turn(self) -> None:
        """Wait for an end, and look after what was lost. Raises ControlError where the server does not say enough."""
        for fd, _event in self._ends.poll(LOOK_SECONDS * 1000 if self._lost else None):
            if fd != self._wake:
                self._ends.unregister(fd)
                os.close(fd)
                model, process = self._watched.pop(fd)
                if model in (SERVER, ORCHESTRATOR):
                    self._note(model)
                if model != SERVER:
                    self._lost[model] = process
        if self._lost and not self._stopped.is_set():
            self._look()

    def _note(self, model: str) -> None:
        """A server that ends takes its models along: that is one death, whichever is seen first."""
        if not self._ended:
            self._ended = model == SERVER or not processes.lives(self._server)
            self._died(self._ended)

    def _look(self) -> None:
        """Watch the models that are back; report those that Triton takes for ready though their process ended.

        Triton says `ready` before and after the look at the processes: what is being loaded or unloaded is not dead."""
        before = self._control.states()
        living = processes.by_model(self._server)
        lost = dict(self._lost)
        dead = {model for model, ended in lost.items() if not living.get(model) or processes.state(ended) == "Z"}
        after = self._control.states() if dead else before
        for model, ended in lost.items():
            if model not in dead:
                self._watch(model, living[model])
            elif before.get(model) == after.get(model) == "READY" and self._lost[model] == ended:
                if model == ORCHESTRATOR and ended == NOBODY:  # nobody saw it end
                    self._note(model)
                self._supervisor.report(model, StubDead(f"{model}: its process ended"))

    def _watch(self, model: str, pids: list[int]) -> None:
        known = {pid for _model, pid in self._watched.values()}
        with contextlib.suppress(ProcessLookupError):  # it ended just now: it stays lost
            for pid in set(pids) - known:
                self._follow(model, pid)
            del self._lost[model]

    def _follow(self, model: str, pid: int) -> None:
        fd = os.pidfd_open(pid)
        self._watched[fd] = (model, pid)
        self._ends.register(fd, select.POLLIN)

    def _came_back(self, model: str) -> None:
        """On the supervisor's thread. What ended may stay a zombie: Triton waits for none that died within a call."""
        self._lost[model] = NOBODY
