"""Real servers, each once per process of the test session, on free ports.

`server` has one drafter of each kind. `crowded` has the profile `demo-cpu`, with a process for each of ten
models: for what all drafters matter to, and for deaths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.launcher import FREE_PORTS, Options, Server
from covey.launcher.front import Front
from tests.e2e.serving import served
from tests.fronts import fronting

PROFILE = """
models = [
  "target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", "draft_general", "draft_ngram",
]
[target]
threads = 2
kv_memory_mb = 256
[speculation]
drafters = ["draft_general", "draft_ngram"]
"""
LIMIT = 512  # threads and processes; the usual default of a container is 2,048


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started on first use. `server.http_url` and `server.grpc_url` are host:port; `server.log_text()` says why."""
    with served(PROFILE, tmp_path_factory.mktemp("server")) as running:
        yield running


@contextmanager
def limited() -> Iterator[Path | None]:
    """What is started meanwhile, and its children, may have LIMIT threads, where this machine lets us say so; yields
    the control group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        own = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
        group = own / f"covey-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(LIMIT))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            (own / "cgroup.procs").write_text(str(os.getpid()))
        return
    yield None


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests may hurt, as long as all of it is back when they end, under a container's limit."""
    log_file = tmp_path_factory.mktemp("full") / "log"
    server = Server(Options(**FREE_PORTS, log_file=log_file))
    group = None
    try:
        with limited() as group:
            server.start()
        yield server
        server.kill()  # in order it takes long; that is for `test_drain` to see
    finally:
        server.stop(drain_seconds=0)
        if group is not None:
            while (group / "cgroup.procs").read_text():  # the last ones are ending
                time.sleep(0.1)
            group.rmdir()


@pytest.fixture(scope="module")
def front(server: Server) -> Iterator[Front]:
    """What strangers reach of it."""
    with fronting(server) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails says what its server did."""
    report = yield
    given = getattr(item, "funcargs", {})
    server = given.get("server") or given.get("crowded")
    if report.failed and isinstance(server, Server):
        states = str(server.control.states()) if server.running else "ended"
        report.sections += [("models", states), ("tritonserver", server.log_text()[-8000:])]
    return report
