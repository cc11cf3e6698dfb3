"""Runs one tritonserver: starts it, waits until its models are loaded, drains and stops it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from covey.contracts.errors import PortError, SettingError
from covey.launcher import (
    admin,
    backend_dir,
    command,
    hub,
    installation,
    log,
    port_claim,
    preflight,
    private_memory,
    shared_memory,
    unseen,
)
from covey.launcher.errors import Crashed, ServerDied, StartError
from covey.launcher.guardian import Guardian
from covey.launcher.options import ORCHESTRATOR, PUBLIC_MODELS, Options, reachable
from covey.models.native import compiled
from covey.process import cpu
from covey.supervision import processes, silence
from covey.supervision.control import FAILED, LOADING, READY, UNLOADED, Control, ControlError
from covey.supervision.deaths import Deaths
from covey.supervision.supervisor import Supervisor, roles
from covey.supervision.watch import Watch
from covey.tritonio import link

Watcher = Callable[[tuple[str, ...], tuple[str, ...]], None]  # called with the loaded models and with all models
POLL_SECONDS = 0.1
LEAVE_SECONDS = 30.0  # for a stop after its drain
STOPPED_SECONDS = 1.0  # for tritonserver to end after its models have had their time
LOST_SECONDS = 2.0  # for Triton to notice that a model to unload has lost its process or its last request
READ_SECONDS = 10.0  # the same while a client is connected: it may still read an answer
CLOSED = (UNLOADED, FAILED, "", None)  # states of models without requests
STOP_SECONDS = 5.0  # for a reload in progress when no request waits
SETTLE_SECONDS = 0.2  # after closing the forwarding models: their last requests have reached `covey`
SILENT_SECONDS = 10.0  # of silence before a running tritonserver is ended; outside requests may occupy its threads
_PR_SET_PDEATHSIG = 1
_log = logging.getLogger("covey.launcher")

STARTS = 3  # attempts, unless a process ends by its own error


class Server:
    """One tritonserver. `start()` returns when every model is loaded. `stop()` drains first and may be called twice."""

    def __init__(self, options: Options, watcher: Watcher | None = None) -> None:
        self.options = options  # after start() with the chosen ports
        self.models: tuple[str, ...] = ()
        self.left_out: dict[str, str] = {}  # drafters that do not fit the target, and why
        self.swept: tuple[str, ...] = ()  # shared memory regions left by killed servers
        self.log_file = Path()
        self.deaths = Deaths()
        self._secret = ""  # the one in use
        self._watcher = watcher or (lambda _loaded, _all: None)
        self._process: subprocess.Popen[bytes] | None = None
        self._held = contextlib.ExitStack()  # resources of a start, released in reverse order
        self._guardian: Guardian | None = None
        self._supervisor: Supervisor | None = None
        self._silence: Watch | None = None
        self._roles: dict[str, str] = {}  # of the models with processes
        self.runs: int | None = None  # requests in `covey` at the drain's last question; None if it did not answer

    @property
    def http_url(self) -> str:
        """Return host:port for tritonclient."""
        return f"{reachable(self.options.host)}:{self.options.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{reachable(self.options.host)}:{self.options.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{reachable(self.options.host)}:{self.options.metrics_port}/metrics"

    @property
    def control(self) -> Control:
        return Control(reachable(self.options.host), self.options.http_port, self._secret)

    @property
    def pid(self) -> int:
        """Return the process id of tritonserver; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.is_file() else ""

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain_seconds=0.0 if kind is not None else None)

    def start(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start the server and wait until it is ready; try again after a crash. Calls `meanwhile` repeatedly. Raises
        SettingError or StartError after ending everything."""
        for start in range(1, STARTS + 1):
            try:
                self._start(meanwhile)
                return
            except Crashed as crash:
                if start == STARTS:
                    raise
                _log.warning("%s; starting it again", crash)

    def _start(self, meanwhile: Callable[[], None]) -> None:
        preflight.exposure(self.options)
        triton = installation.find(self.options.triton)
        self.options = hub.with_folders(self.options)
        self.models = preflight.models(self.options)
        preflight.limits(self.models)
        preflight.weights(self.options, self.models)
        self.left_out = preflight.left_out(self.options, self.models)
        self.models = tuple(name for name in self.models if name not in self.left_out)
        tokens = preflight.memory(self.options, self.models)
        self._compile()
        self.options, ports = port_claim.settle(self.options)
        where = self.options.http_port, self.options.host
        self._held.callback(ports.release)
        try:
            guardian = Guardian(self.options.host, [getattr(self.options, name) for name in preflight.PORTS])
            self._guardian = guardian
            self._held.callback(guardian.dismiss)  # it cleans up if the launcher is killed
            backends = backend_dir.assemble(triton, self.options.backends_folder(), self.options.state)
            self.swept = shared_memory.sweep()
            claim = shared_memory.claim(self.options.http_port)
            self._held.callback(claim.release)
            guardian.tell(claim.prefix)
            self._secret = admin.settle(where[0], self.options.admin_secret, where[1])
            self._held.callback(admin.forget, where[0], self._secret, where[1])
            guardian.tell(self._secret)
            settled = replace(self.options, admin_secret=self._secret)
            words = command.command(settled, triton, backends, self.models, claim.prefix)
            with self._open_log() as output:
                self._process = unseen.start(
                    words,
                    self._secret,
                    env=command.environment(settled, triton, self.left_out, tokens),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the launcher, which drains
                    pass_fds=(claim.fd,),
                    umask=private_memory.UMASK,
                    preexec_fn=_in_child(),  # only system calls, loaded before the fork
                )
            self._held.callback(self._end_process, claim.prefix)
            guardian.tell(str(self.pid))
            self._roles = roles(self.options.repository_folder(), self.models)
            self._supervisor = Supervisor(
                self.control,
                self.pid,
                self._roles,
                starting=self._starting_states,
                load_seconds=self.options.load_seconds,
                died=self.deaths.note,
            )
            self._wait_until_ready(self._supervisor, meanwhile)
            if shared_memory.open_to_others(claim.prefix):
                _log.warning("other users of this machine can read the prompts of this server in %s", "/dev/shm")
            self.deaths.serving(True)
        except BaseException:
            self.kill()
            raise

    def _compile(self) -> None:
        """Compile the models' code for this CPU in advance: a loading model waits only briefly for a compiler."""
        variants = compiled.missing(preflight.variants(self.options, self.models))
        if not variants:
            return
        _log.info("compiling for %s; this takes half a minute, once for each type of numbers", cpu.label())
        if reason := compiled.ensure(variants, patient=True):
            _log.warning("PyTorch computes instead of the native runtime: %s", reason)

    def check(self) -> None:
        """Raise ServerDied if tritonserver has ended by itself. Start the guardian again if it has ended."""
        if self._process is not None and self._guardian is not None and self._guardian.check():
            _log.warning("the guardian had ended or was paused, and was started again")
        if self._process is None or self._process.poll() is None:
            return
        raise ServerDied(
            f"tritonserver ended by itself ({_ending(self._process.returncode)}); the end of {self.log_file}:\n"
            + log.tail(self.log_text())
        )

    def serves(self, loaded: tuple[str, ...]) -> bool:
        """Return whether the orchestrator has measured and can serve. Raises SettingError if it never will. Another
        backend's model of that name is ready at once."""
        if ORCHESTRATOR not in self.models or ORCHESTRATOR not in loaded:
            return ORCHESTRATOR not in self.models
        if self._roles.get(ORCHESTRATOR) != backend_dir.OWN_LIBRARY:
            return True
        try:
            return link.serves(ORCHESTRATOR, self.pid)
        except PortError:
            return False

    def drain(self, seconds: float) -> bool:
        """Close the public models and wait for requests in flight. Return whether all ended in time.

        `covey` closes last: Triton does not count its work for `covey_unary`, and a model that is being unloaded can
        call no other. Until then `covey` itself refuses new requests. If it has no requests, it does not wait for the
        other models, whose processes take a second to end.
        """
        until, self.runs = time.monotonic() + seconds, None
        public = [name for name in PUBLIC_MODELS if name in self.models]
        try:
            for name in public[:-1]:
                self.control.unload(name)
            if len(public) > 1:
                time.sleep(SETTLE_SECONDS)
            self._ask_what_runs()
            if self.runs != 0 and not self._closed(public[:-1], until):
                return False
            for name in public[-1:]:
                self.control.unload(name)
            return self._closed(public, until)
        except ControlError:
            return self.runs == 0

    def stop(self, drain_seconds: float | None = None) -> bool:
        """Drain, then SIGTERM if that succeeded, then SIGKILL. Takes at most LEAVE_SECONDS after the drain. Return
        whether every request in flight could end."""
        seconds = self.options.drain_seconds if drain_seconds is None else drain_seconds
        drained = self._process is None  # an ended process has lost its requests
        if self.running and self._process is not None:
            self._end_silence()
            if self._supervisor is not None:
                self._supervisor.drain()
            drained = self.drain(seconds) if seconds > 0 else False
            self._end_supervisor()
            until = time.monotonic() + self.options.stop_seconds
            if (drained and self._unload(until)) or not seconds:  # else it waits for a model that never ends
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):  # kill() ends it
                    self._process.wait(max(STOPPED_SECONDS, until - time.monotonic()))
        self.kill()
        return drained

    def _unload(self, until: float) -> bool:
        """Unload the inner models. Return whether all models have ended. tritonserver checks that, and its callers'
        connections, only once a second; this checks more often."""
        inner, ended = [name for name in self.models if name not in PUBLIC_MODELS], True
        with contextlib.suppress(ControlError):
            for name in inner:
                self.control.unload(name)
            self._closed(inner, until)
            states = self.control.states()
            ended = all(states.get(name) in CLOSED for name in self.models)
        time.sleep(POLL_SECONDS)
        return ended

    def kill(self) -> None:
        """End every process of this server at once and remove its shared memory. Does nothing the second time."""
        self.deaths.serving(False)
        self._held.close()

    def _end_process(self, prefix: str) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        processes.kill(prefix)  # stubs that outlive their server
        self._process.wait()
        link.forget(self._process.pid)
        self._process = None
        self._end_silence()
        self._end_supervisor()

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.stop()
            self._silence = None

    def _end_supervisor(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(STOP_SECONDS)
            self._supervisor = None

    def _ask_what_runs(self) -> None:
        """Ask `covey` how many requests it still has. From the first question on it takes no more."""
        with contextlib.suppress(PortError):  # it has ended, or another backend's model has that name
            self.runs = link.refuse_requests(ORCHESTRATOR, self.pid)

    def _kept(self, idle: float) -> bool:
        """Return whether only Triton still holds `covey`, which has had no request for `idle` seconds."""
        if idle <= LOST_SECONDS:
            return False
        return idle > READ_SECONDS or not processes.serves_somebody(self.pid, self.options.grpc_port)

    def _closed(self, models: list[str], until: float) -> bool:
        """Wait until these models have ended with their requests. Return False if time is up.

        Triton waits for ever for a model whose process died within a request. Triton 24.10 also keeps a request whose
        gRPC stream was cancelled just at its last response (pull request 8078). A slow reader looks the same, since
        `covey` is done with its request; but it is still connected.
        """
        gone: dict[str, float] = {}  # models without a process, and since when
        busy = time.monotonic()  # when `covey` last had requests, or did not answer
        while self.running:
            states, living, now = self.control.states(), processes.by_model(self.pid), time.monotonic()
            still = {name for name in self.models if states.get(name) not in CLOSED}
            gone = {name: gone.get(name, now) for name in self._roles if name in still and name not in living}
            dead = {name for name, since in gone.items() if now - since > LOST_SECONDS}
            if ORCHESTRATOR in dead:  # its waiting requests get no answer
                return self.runs == 0
            open_still = still & set(models) - dead
            if not open_still or (open_still == {ORCHESTRATOR} and self._kept(now - busy)):
                return True
            if now > until:
                return False
            self._ask_what_runs()
            busy = busy if self.runs == 0 else now
            time.sleep(POLL_SECONDS)
        return self.runs == 0

    def _open_log(self) -> BinaryIO:
        self.log_file = self.options.log_file or (
            self.options.state / "logs" / f"tritonserver-{self.options.http_port}.log"
        )
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists():
            self.log_file.replace(self.log_file.with_name(self.log_file.name + ".1"))
        return self.log_file.open("wb")

    def _starting_states(self) -> dict[str, str]:
        """Return the models' states from the log: while tritonserver loads its first models it answers no question."""
        text = self.log_text()
        begun, came_up = log.begun(text), log.loaded(text)
        return {name: READY if name in came_up else LOADING if name in begun else "" for name in self.models}

    def _wait_until_ready(self, supervisor: Supervisor, meanwhile: Callable[[], None]) -> None:
        """Wait for all models. Raises StartError if that takes too long or the start cannot succeed. The supervisor
        ends hanging processes much sooner."""
        began = time.monotonic()
        seen: tuple[str, ...] | None = None
        while True:
            meanwhile()
            silent = self._silent_ports()
            came_up = tuple(name for name in log.loaded(self.log_text()) if name in self.models)
            try:
                ready = self.serves(came_up) and not silent and self.control.ready()
            except SettingError as error:
                raise StartError(f"{error} [log: {self.log_file}]") from None
            if not silent and self._silence is None:  # Triton opens its ports after all models are loaded
                supervisor.started()
                self._silence = silence.watch("tritonserver", lambda: self.pid, self.http_url, SILENT_SECONDS)
            if came_up != seen:
                seen = came_up
                self._watcher(seen, self.models)
            if not self.running:
                assert self._process is not None
                raise self._ended(self._process.returncode, supervisor.killed)
            if ready:
                return
            took = time.monotonic() - began
            if took > self.options.load_seconds:
                late = [name for name in self.models if name not in came_up]
                waiting = "a loaded model is not ready"
                if late or silent:
                    waiting = f"still loading: {', '.join(late)}" if late else f"no listener on {', '.join(silent)}"
                raise StartError(f"not ready after {took:.0f} s, {waiting} [log: {self.log_file}]")
            time.sleep(POLL_SECONDS)

    def _ended(self, code: int, killed: list[str]) -> StartError:
        """Return why tritonserver ended during its start. Crashed says that another start may succeed: the server was
        killed, or a model's process ended. StartError says that it would fail again: a model was refused."""
        text = self.log_text()
        said, lost = log.reason(text), code < 0 or bool(killed) or log.lost_process(text)
        if set(killed) - {processes.SERVER} or (lost and not log.refused(text)):
            by = f"tritonserver ended ({_ending(code)})" if code < 0 or not said else said
            return Crashed(f"{by} [log: {self.log_file}]")
        return StartError(f"{said or f'tritonserver ended ({_ending(code)})'} [log: {self.log_file}]")

    def _silent_ports(self) -> list[str]:
        """Return the ports among the three without a listener. Triton opens the metrics port last."""
        silent = []
        for name in preflight.PORTS:
            port = getattr(self.options, name)
            try:
                socket.create_connection((reachable(self.options.host), port), self.control.seconds).close()
            except OSError:
                silent.append(f"{name} {port}")
        return silent


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _in_child() -> Callable[[], None]:
    """Return the function that the child calls before it becomes tritonserver."""
    steps = [step for step in (end_with_launcher(signal.SIGTERM), private_memory.keeper()) if step is not None]

    def in_child() -> None:
        for step in steps:
            step()

    return in_child


def end_with_launcher(by: signal.Signals) -> Callable[[], None] | None:
    """Return a call that makes the kernel end the child when its launcher is killed. The kernel watches the starting
    *thread*, so this is None in all threads but the main one."""
    return end_with_thread(by) if threading.current_thread() is threading.main_thread() else None


def end_with_thread(by: signal.Signals) -> Callable[[], None]:
    """Return a call that makes the kernel end the child when the starting thread ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded before the fork

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)

    return in_child
