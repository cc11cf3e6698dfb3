"""The real server, once per test session, on free ports, with the profile `demo-cpu`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import pytest

from covey.server import FREE, Options, Server
from covey.server.front import Front


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started on first use. `server.http_url` and `server.grpc_url` are host:port; `server.log_text()` says why."""
    log_file = tmp_path_factory.mktemp("server") / "tritonserver.log"
    with Server(Options(http_port=FREE, grpc_port=FREE, metrics_port=FREE, log_file=log_file)) as running:
        yield running
        running.kill()  # in order it takes long; that is for `test_drain` to see


@pytest.fixture(scope="session")
def front(server: Server) -> Iterator[Front]:
    """What strangers reach of it."""
    made = Front(replace(server.options, front_http_port=FREE, front_grpc_port=FREE), server.deaths)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails says what its server did."""
    report = yield
    server = getattr(item, "funcargs", {}).get("server")
    if report.failed and isinstance(server, Server):
        states = str(server.control.states()) if server.running else "ended"
        report.sections += [("models", states), ("tritonserver", server.log_text()[-8000:])]
    return report
