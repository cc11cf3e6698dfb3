"""The launcher as `make serve` starts it, with its front, and every process that it answers for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from covey.errors import SettingError
from covey.private import private_folder
from covey.server import FREE, Options, preflight, processes, shared_memory
from covey.server.front import with_ports
from covey_client import secret

START_SECONDS, STOP_SECONDS = 300.0, 90.0
FRONT, SERVER = "front", "tritonserver"
USED = re.compile(r'^covey_kv_blocks\{[^}]*state="used"[^}]*\} (\S+)$', re.MULTILINE)


class Launched:
    """One launcher; `processes()` says what runs below it now."""

    def __init__(self, profile: str, out: Path) -> None:
        free = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "front_http_port", "front_grpc_port"), FREE)
        self.options = with_ports(preflight.with_ports(Options(**free, profile=profile)))  # type: ignore[arg-type]
        self._seen: set[int] = set()  # servers, whose folders are to be gone in the end
        self._log = (out / "launcher.log").open("wb")
        flags = [f"--{name.replace('_', '-')}={getattr(self.options, name)}" for name in free]
        words = [sys.executable, "-m", "covey.server", *flags, "--profile", profile]
        words += ["--log-file", str(out / "tritonserver.log")]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        until = time.monotonic() + START_SECONDS
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise SettingError(f"the server did not start, see {out / 'launcher.log'}")
            time.sleep(0.2)

    @property
    def front_http(self) -> str:
        return f"127.0.0.1:{self.options.front_http_port}"

    @property
    def front_grpc(self) -> str:
        return f"127.0.0.1:{self.options.front_grpc_port}"

    def ready(self, process: str = FRONT) -> bool:
        """What the front says of itself and of the server, and Triton of a model."""
        url = f"http://{self.front_http}/v2/health/ready"
        if process not in (FRONT, SERVER):
            url = f"http://127.0.0.1:{self.options.http_port}/v2/models/{process}/ready"
        try:
            with urllib.request.urlopen(url, timeout=2) as said:
                return bool(said.status == 200)
        except OSError:
            return False

    def processes(self) -> dict[str, int]:
        """By name: the front, tritonserver, every model's."""
        found: dict[str, int] = {}
        for pid in _children(self._process.pid):
            words = _words(pid)
            if "covey.front" in words:
                found[FRONT] = pid
            elif words and Path(words[0]).name == SERVER:
                self._seen.add(pid)
                found |= processes.named(pid)
        return {name: pid for name, pid in found.items() if processes.state(pid) not in ("", "Z")}

    def used_blocks(self) -> float:
        with urllib.request.urlopen(f"http://{self.front_http}/metrics", timeout=10) as said:
            found = USED.search(said.read().decode())
        return float(found[1]) if found else 0.0

    def shared_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._regions())

    def stop(self) -> list[str]:
        """In order; returns what is left behind, by name."""
        before = self.processes()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return ["the launcher did not end"]
        left = [] if code == 0 else [f"the launcher's exit status is {code}"]
        left += [f"process {name}" for name, pid in before.items() if processes.state(pid) not in ("", "Z")]
        left += [f"region {path.name}" for path in self._regions()]
        left += [f"folder {path}" for pid in self._seen for path in Path("/tmp").glob(f"covey-{os.getuid()}-{pid}")]
        ports = [self.options.http_port, self.options.grpc_port, self.options.metrics_port]
        names = [secret.name_of(self.options.host, port) for port in ports]
        kept = private_folder(secret.folder())
        return left + [f"file {path.name}" for name in names for path in kept.glob(f"{name}*")]

    def kill(self) -> None:
        """Everything, at once. The kernel ends the front and tritonserver with their launcher."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _regions(self) -> list[Path]:
        return list(shared_memory.FOLDER.glob(f"covey_{self.options.http_port}_*"))


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc", str(parent), "task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


def _words(pid: int) -> list[str]:
    with suppress(OSError):
        return Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
    return []
