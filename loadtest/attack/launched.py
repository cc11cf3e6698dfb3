"""Starts the launcher as `make serve` does, with its front, and follows all its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.launcher import FREE, Options, preflight, shared_memory
from covey.launcher.front import with_ports
from covey.process.private import KEPT_VARIABLE
from covey.supervision import processes
from covey_client import secret
from loadtest.attack import rooms

START_SECONDS, STOP_SECONDS = 300.0, 90.0
LOOK_SECONDS = 0.1
FRONT, SERVER = "front", "tritonserver"
USED = r'covey_kv_blocks\{[^}]*state="used"[^}]*\}'


class Launched:
    """Owns one launcher; `processes()` returns the processes below it now. `rooms` are those of its places that can
    be filled."""

    def __init__(self, profile: str, out: Path, *, small: bool = True) -> None:
        """Start the launcher and return when it is ready. `small`: its places are, if this machine allows it. Raises
        SettingError."""
        free = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "front_http_port", "front_grpc_port"), FREE)
        self.options = with_ports(preflight.with_ports(Options(**free, profile=profile)))  # type: ignore[arg-type]
        self._seen: set[int] = set()  # servers, whose folders must be gone in the end
        self._began = time.time()  # a killed launcher of another server has left the older ones
        self._log = (out / "launcher.log").open("wb")
        flags = [f"--{name.replace('_', '-')}={getattr(self.options, name)}" for name in free]
        words = [sys.executable, "-m", "covey.launcher", *flags, "--profile", profile]
        words += ["--log-file", str(out / "tritonserver.log")]
        kept = (out / "kept").resolve()
        kept.mkdir(mode=0o700, exist_ok=True)
        small = small and rooms.possible()
        self._process = subprocess.Popen(
            [*rooms.words(kept), *words] if small else words,
            env=os.environ | {KEPT_VARIABLE: str(kept)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.rooms: dict[str, rooms.Room] = {}
        until = time.monotonic() + START_SECONDS
        try:
            while not self.ready():
                if self._process.poll() is not None or time.monotonic() > until:
                    raise SettingError(f"the server did not start, see {out / 'launcher.log'}")
                time.sleep(LOOK_SECONDS)
        except BaseException:
            self.kill()
            raise
        if small:  # they are made by now
            places = {rooms.MEMORY: shared_memory.FOLDER, rooms.KEPT: kept}
            self.rooms = {name: rooms.Room(self._process.pid, place) for name, place in places.items()}

    @property
    def front_http(self) -> str:
        return f"127.0.0.1:{self.options.front_http_port}"

    @property
    def front_grpc(self) -> str:
        return f"127.0.0.1:{self.options.front_grpc_port}"

    def ready(self, process: str = FRONT) -> bool:
        """Return whether the front says that it and the server are ready, or Triton says so of a model."""
        url = f"http://{self.front_http}/v2/health/ready"
        if process not in (FRONT, SERVER):
            url = f"http://127.0.0.1:{self.options.http_port}/v2/models/{process}/ready"
        try:
            with urllib.request.urlopen(url, timeout=2) as said:
                return bool(said.status == 200)
        except OSError:
            return False

    def processes(self) -> dict[str, int]:
        """Return process ids by name: the front, tritonserver, every model's."""
        found: dict[str, int] = {}
        for pid in _children(self._process.pid):
            words = _words(pid)
            if "covey.front" in words:
                found[FRONT] = pid
            elif words and Path(words[0]).name == SERVER:
                self._seen.add(pid)
                found |= processes.named(pid)
        return {name: pid for name, pid in found.items() if processes.lives(pid)}

    def drafters(self) -> list[str]:
        return [name for name in sorted(self.processes()) if name.startswith("draft_")]

    def doubles(self) -> list[str]:
        """Return the models whose earlier process still lives when its successor does."""
        found = []
        for pid in self._seen:
            for model, pids in processes.by_model(pid).items():
                found += [model] if len(pids) > 1 else []
        return found

    def used_blocks(self) -> float:
        with urllib.request.urlopen(f"http://{self.front_http}/metrics", timeout=10) as said:
            found = re.search(rf"^{USED} (\S+)$", said.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def shared_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._regions())

    def stop(self) -> list[str]:
        """Stop the launcher in order; returns its leaks by name."""
        before = self.processes()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return ["the launcher did not end"]
        return ([] if code == 0 else [f"the launcher's exit status is {code}"]) + self._left(before)

    def _left(self, before: dict[str, int]) -> list[str]:
        left = [f"process {name}" for name, pid in before.items() if processes.state(pid) not in ("", "Z")]
        left += [f"region {path.name}" for path in self._regions()]
        temporary = Path(tempfile.gettempdir())
        left += [f"folder {path}" for pid in self._seen for path in temporary.glob(f"covey-{os.getuid()}-{pid}")]
        ports = [self.options.http_port, self.options.grpc_port, self.options.metrics_port]
        names = [secret.name_of(self.options.host, port) for port in ports]
        kept = self._shared() / secret.folder().name
        files = [path for name in names for path in kept.glob(f"{name}*")]
        return left + [f"file {path.name}" for path in files if _made_after(path, self._began)]

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill everything at once. The kernel tells the front and tritonserver that their launcher has ended, which
        they do not notice while they spin."""
        if self._process.poll() is None:
            left = self.processes().values()
            self._process.kill()
            self._process.wait()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        while self.rooms:
            self.rooms.popitem()[1].leave()
        self._log.close()

    def _regions(self) -> list[Path]:
        return list(self._shared().glob(f"covey_{self.options.http_port}_*"))

    def _shared(self) -> Path:
        return self.rooms[rooms.MEMORY].path if self.rooms else shared_memory.FOLDER


def _made_after(path: Path, began: float) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime > began
    return False


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
