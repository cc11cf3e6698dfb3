"""Processes that are hurt while a server starts: it becomes ready all the same, or says at once why it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import covey
from covey.launcher import FREE_PORTS, Options, Server, shared_memory
from covey.supervision import processes, rules
from covey_client import Client, CoveyClientError, secret
from tests.waiting import until

pytestmark = pytest.mark.e2e
Make = Callable[[], Any]

SECONDS = 120.0
PROMPT = "User: What did you do at the weekend?\nAssistant:"
PROFILE = """
models = ["target", "covey"]
[target]
kind = "emulated"
kv_memory_mb = 512
[speculation]
drafters = []
[emulated]
costs = "emulated-7b-24g"
"""


@contextmanager
def blown(server: Server, what: str, *, after: str = "") -> Iterator[int]:
    """Start a server, and meanwhile kill one process as soon as it is there; yields its number. `after`: not before
    the server's log says so."""
    killed: list[int] = []

    def blow() -> None:
        pid = processes.named(server.pid).get(what, 0)
        if not killed and pid and after in server.log_text():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    server.start(blow)
    try:
        (pid,) = killed
        yield pid
    finally:
        server.kill()


def test_a_model_that_is_killed_while_it_loads_is_loaded_again(
    canned_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "ASLEEP_SECONDS", 5.0)  # one that ends before it has said anything is waited for
    canned = canned_folder()
    canned.add("slow", sleep="2")
    server = canned.server("covey", "slow", load_seconds=SECONDS)
    with blown(server, "slow") as pid, Client(server.grpc_url) as client:
        assert not processes.lives(pid)
        assert client.generate("count 2").tokens == (0, 1)


def test_a_load_that_hangs_in_triton_is_ended_and_begun_again(
    canned_folder: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rules, "ASLEEP_SECONDS", 2.0)
    canned = canned_folder()
    canned.add("hangs", hang=str(tmp_path / "hung"))
    with canned.server("covey", "hangs", load_seconds=SECONDS) as server, Client(server.grpc_url) as client:
        assert (tmp_path / "hung").exists()
        assert client.generate("count 2").tokens == (0, 1)
        server.kill()


def test_a_launcher_that_is_killed_while_its_server_starts_leaves_nothing(canned_folder: Make) -> None:
    """As soon as there is a server; `tests/launcher/test_server_guardian.py` has other times."""
    canned = canned_folder()
    canned.add("slow", sleep="5")
    with subprocess.Popen(canned.command("covey", "slow"), stderr=subprocess.DEVNULL) as launcher:
        server = until(lambda: _server(launcher.pid), launcher.poll)
        port = _words(server, "--http-port=")
        launcher.kill()
    until(lambda: not (_names(f"covey_{port}_") or _files(port)), lambda: _files(port), SECONDS)


def _files(port: str) -> list[Path]:
    """Of a server on that port, in shared memory."""
    kept = secret.folder().glob(f"{secret.name_of('', int(port))}*")
    return [*shared_memory.FOLDER.glob(f"covey_{port}_*"), *kept]


def _server(launcher: int) -> int:
    """The tritonserver below it; 0 while there is none."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return next((int(pid) for pid in children if _words(int(pid), "--http-port=")), 0)


def _names(marker: str) -> bool:
    """Whether a process has it on its command line."""
    found = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
    return any(marker in word for words in found for word in words)


def _words(pid: int, option: str) -> str:
    """What a process was given for an option."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return ""
    return next((word.removeprefix(option) for word in words if word.startswith(option)), "")


def own_orchestrator(folder: Path, *lines: str) -> Path:
    """A backend folder whose orchestrator is followed by lines of its own."""
    real = Path(covey.__file__).parents[1]
    folder.mkdir()
    for backend in real.iterdir():
        if backend.name != "orchestrator":
            (folder / backend.name).symlink_to(backend)
    (folder / "orchestrator").mkdir()
    source = (real / "orchestrator" / "model.py").read_text()
    (folder / "orchestrator" / "model.py").write_text("\n".join((source, *lines, "")))
    return folder


def small(folder: Path, **changes: Any) -> Server:
    (folder / "small.toml").write_text(PROFILE)
    files = {"profile": str(folder / "small.toml"), "log_file": folder / "log"}
    repository = Path(covey.__file__).parents[2] / "model_repository"
    return Server(Options(**FREE_PORTS, **files, model_repository=repository, **changes))


def test_models_that_die_before_all_is_ready_are_back_when_it_is(tmp_path: Path) -> None:
    """Triton says that they are loaded, and the orchestrator still measures."""
    server = small(tmp_path, load_seconds=2 * SECONDS)
    with blown(server, "covey", after="Started Metrics Service"), Client(server.grpc_url, timeout=SECONDS) as client:
        assert len(client.generate(PROMPT, max_tokens=3, min_tokens=3).tokens) == 3


def test_an_orchestrator_whose_engine_dies_tells_its_streams_and_is_back(tmp_path: Path) -> None:
    mark = tmp_path / "dies"
    backends = own_orchestrator(
        tmp_path / "backends",
        "from covey.loop.engine import Engine",
        "_round = Engine.round",
        "def _dying(self, *given, **named):",
        f"    if os.path.exists({str(mark)!r}):",
        f"        os.unlink({str(mark)!r})",
        "        raise RuntimeError('a bug')",
        "    return _round(self, *given, **named)",
        "Engine.round = _dying",
    )
    settings = {"temperature": 1.0, "seed": 7}
    with small(tmp_path, backends=backends) as server, Client(server.grpc_url, timeout=SECONDS) as client:
        before = processes.named(server.pid)["covey"]
        known = client.generate(PROMPT, max_tokens=5, min_tokens=5, **settings).tokens
        stream = client.stream(PROMPT, max_tokens=1000, min_tokens=1000, **settings)
        next(stream)
        mark.touch()
        with pytest.raises(CoveyClientError, match="engine has stopped"):
            list(stream)
        until(
            lambda: processes.named(server.pid).get("covey", before) != before and server.control.ready(),
            lambda: server.log_text()[-2000:],
            SECONDS,
        )
        assert client.generate(PROMPT, max_tokens=5, min_tokens=5, **settings).tokens == known
        server.kill()
