"""Runs a front (`covey.front`) for a tritonserver: starts it once that serves, and again after it ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from covey.launcher import preflight
from covey.launcher.errors import StartError
from covey.launcher.options import Options, reachable
from covey.launcher.process import end_with_launcher
from covey.supervision import processes, silence
from covey.supervision.deaths import Deaths
from covey.supervision.restarts import Restarts
from covey.supervision.watch import Watch
from covey_client import secret

PORTS = {"front_http_port": "FRONT_HTTP_PORT", "front_grpc_port": "FRONT_GRPC_PORT"}
START_SECONDS, STARTS = 20.0, 3  # for one start, and the number of starts to try
END_SECONDS = 5.0
LOOK_SECONDS = 0.05
SILENT_SECONDS = 3.0  # of silence before a running front is ended: it answers in milliseconds, or at most in 0.1 s
log = logging.getLogger("covey.launcher.front")


class Front:
    """Owns one front process. `options` (with its chosen ports) and `deaths` are a running server's."""

    def __init__(self, options: Options, deaths: Deaths) -> None:
        self.options = with_ports(options)
        self._deaths = deaths
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = Restarts(time.monotonic)
        self._again_at: float | None = None
        self._silence: Watch | None = None

    @property
    def http_url(self) -> str:
        return f"{reachable(self.options.front_host)}:{self.options.front_http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{reachable(self.options.front_host)}:{self.options.front_grpc_port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the front and return when both ports are open and it answers. A front that ends or hangs before that is
        started again. Raises StartError after STARTS attempts."""
        for _ in range(STARTS):
            self._open()
            try:
                if self._comes_up():
                    break
            except BaseException:
                self.stop()
                raise
            processes.end([self.pid])
        else:
            self.stop()
            raise StartError(f"the front does not listen on {self.http_url} and {self.grpc_url}; see its log above")
        self._silence = silence.watch("the front", self._running, self.http_url, SILENT_SECONDS)

    def check(self) -> None:
        """Start the front again if it has ended, at once or after a growing rest. Never waits."""
        if self._process is None or self._process.poll() is None:
            return
        now = time.monotonic()
        if self._again_at is None:
            rest = self._restarts.rest()
            self._again_at = now + (60.0 if rest is None else rest)
            log.warning("the front ended (status %s), starting it again", self._process.returncode)
        if now >= self._again_at:
            self._again_at = None
            try:
                self._open()
            except OSError as error:  # such as too many processes; counts as another end
                log.warning("cannot start the front: %s", error)

    def drain(self) -> None:
        """Make the front refuse new requests and stop resuming broken ones."""
        if self._running():
            os.kill(self.pid, signal.SIGUSR1)

    def stop(self) -> None:
        """End the front. The last answers get a second. Does nothing the second time."""
        if self._silence is not None:
            self._silence.stop()
            self._silence = None
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _comes_up(self) -> bool:
        ports = (self.options.front_http_port, self.options.front_grpc_port)
        until = time.monotonic() + START_SECONDS
        while self._running() and time.monotonic() < until:
            if all(self._listens(port) for port in ports) and silence.answers(self.http_url, silence.LOOK_SECONDS):
                return True
            time.sleep(LOOK_SECONDS)
        return False

    def _running(self) -> int:
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def _open(self) -> None:
        options = self.options
        upstream = reachable(options.host)
        own = Path(options.profile)
        words = [
            *(sys.executable, "-m", "covey.front", "--host", options.front_host),
            *("--http-port", str(options.front_http_port), "--grpc-port", str(options.front_grpc_port)),
            *("--upstream", f"{upstream}:{options.grpc_port}"),
            *("--upstream-metrics", f"{upstream}:{options.metrics_port}", "--deaths", str(self._deaths.fd)),
            *("--profile", str(own.resolve()) if own.is_file() else options.profile),
            *(word for name in options.served_model_name for word in ("--served-model-name", name)),
            *("--folder", str(preflight.target_folder(options))),
        ]
        self._process = subprocess.Popen(
            words,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=(self._deaths.fd,),
            start_new_session=True,  # Ctrl-C is for the launcher, which drains
            preexec_fn=end_with_launcher(signal.SIGKILL),  # noqa: PLW1509 - one system call
        )

    def _listens(self, port: int | None) -> bool:
        try:
            socket.create_connection((reachable(self.options.front_host), port or 0), 1.0).close()
        except OSError:
            return False
        return True


def wanted(options: Options) -> bool:
    return options.front_http_port is not None and options.front_grpc_port is not None


def with_ports(options: Options) -> Options:
    """Return the options with a port for every FREE one of the front; refuses ports in use."""
    tritons = [getattr(options, name) for name in preflight.PORTS]
    return replace(options, **preflight.chosen(options, options.front_host, PORTS, tritons))


def _environment() -> dict[str, str]:
    """Return this process's environment without the server's secret, which the front does not need."""
    return {
        name: value for name, value in os.environ.items() if name not in (secret.VARIABLE, secret.FILE_VARIABLE)
    } | {
        "PYTHONUNBUFFERED": "1",
        "GRPC_VERBOSITY": "NONE",  # otherwise a log line for each invalid byte
    }
