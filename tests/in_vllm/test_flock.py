"""Two vLLM engines whose drafter is on a third process, Triton's, over a way that is slow, cut and healed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from covey.server import FREE, Options, Server
from loadtest.bench.peers.pipe import Pipe
from tests.e2e.link import Link
from tests.in_vllm.serving import PYTHON, asks, engine, needs_vllm

pytestmark = [pytest.mark.e2e, *needs_vllm]

DRAFTERS = """
models = ["draft_general"]
[star]
callers = "{callers}"
admission = false
"""
SECRET = "secret-of-vllm-servers"
BACK_SECONDS = 30.0


@dataclass
class Flock:
    links: list[Link]
    engines: list[Pipe]
    plain: Pipe


@pytest.fixture(scope="module")
def flock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flock]:
    if subprocess.run([PYTHON, "-c", "import tritonclient.grpc"], check=False, capture_output=True).returncode:
        pytest.skip("the Python with vLLM has no tritonclient")
    folder = tmp_path_factory.mktemp("flock")
    with ExitStack() as stack:
        callers = private(folder / "callers", f"vllm {SECRET}\n")
        (folder / "drafters.toml").write_text(DRAFTERS.format(callers=callers))
        ports = {"http_port": FREE, "grpc_port": FREE, "metrics_port": FREE}
        options = Options(**ports, profile=str(folder / "drafters.toml"), log_file=folder / "drafters.log")
        server = stack.enter_context(Server(options))
        host, _, port = server.grpc_url.rpartition(":")
        made = Flock([], [], engine(stack))
        secret = str(private(folder / "secret", f"{SECRET}\n"))
        for _ in range(2):
            link = stack.enter_context(Link((host, int(port))))
            table = {
                "drafters": {"far": f"{link.address}/draft_general"},
                "speculation": {"policy": "fixed:3", "draft_deadline_ms": 2000.0},
                "star": {"secret": secret},
            }
            made.links.append(link)
            made.engines.append(engine(stack, {"far": table}))
        yield made


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def test_nothing_is_lost_when_the_drafter_is_far_or_gone_and_drafts_come_back(flock: Flock) -> None:
    given = asks(6, seed=7)
    expected = flock.plain.call("serve", **given, callers=3)

    def steps() -> list[int]:
        found = [each.call("serve", **given, callers=3, policy="far") for each in flock.engines]
        assert all(each["tokens"] == expected["tokens"] for each in found)
        return [each["steps"] for each in found]

    assert max(steps()) < expected["steps"]
    for link in flock.links:
        link.delay = 0.01
    assert max(steps()) < expected["steps"]
    for link in flock.links:
        link.delay, link.refuse = 0.0, True
        link.break_all()
    assert min(steps()) > 0.9 * expected["steps"]
    for link in flock.links:
        link.refuse = False
    until = time.monotonic() + BACK_SECONDS
    while max(steps()) >= expected["steps"]:
        assert time.monotonic() < until, "nobody drafts again"
