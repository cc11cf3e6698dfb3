"""Two vLLM engines whose drafter is on a third process, Triton's, over a way that is slow, cut and healed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from covey.launcher import FREE_PORTS, Options, Server
from covey_client import status
from loadtest.bench.derive import private
from loadtest.bench.peers.pipe import Pipe
from tests.e2e.link import Link
from tests.in_vllm.serving import PYTHON, asks, engine, needs_vllm
from tests.waiting import until

pytestmark = [pytest.mark.e2e, *needs_vllm]

DRAFTERS = """
models = ["draft_general"]
[star]
callers = "{callers}"
"""
SECRET = "secret-of-vllm-servers"
BACK_SECONDS = 60.0


@dataclass
class Flock:
    server: Server
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
        options = Options(**FREE_PORTS, profile=str(folder / "drafters.toml"), log_file=folder / "drafters.log")
        server = stack.enter_context(Server(options))
        host, _, port = server.grpc_url.rpartition(":")
        made = Flock(server, [], [], engine(stack))
        secret = str(private(folder / "secret", f"{SECRET}\n"))
        for _ in range(2):
            link = stack.enter_context(Link((host, int(port))))
            table = {
                "drafters": {"far": f"{link.address}/draft_general"},
                "speculation": {"policy": "fixed:3", "draft_deadline_ms": 1000.0},
                "star": {"secret": secret},
            }
            made.links.append(link)
            made.engines.append(engine(stack, {"far": table}))
        yield made


def test_nothing_is_lost_when_the_drafter_is_far_or_gone_and_drafts_come_back(flock: Flock) -> None:
    given = asks(6, seed=7)
    expected = flock.plain.call("serve", **given, callers=3)

    def serve(each: Pipe) -> int:
        found = each.call("serve", **given, callers=3, policy="far")
        assert found["tokens"] == expected["tokens"]
        assert not [name for name, _, _ in found["figures"] if name == "covey_set_aside_total"]
        return int(found["steps"])

    with ThreadPoolExecutor(len(flock.engines)) as both:

        def steps() -> list[int]:
            """Of both, at the same time."""
            return list(both.map(serve, flock.engines))

        assert max(steps()) < expected["steps"]
        for link in flock.links:
            link.delay = 0.01
        assert max(steps()) < expected["steps"]
        for link in flock.links:
            link.delay = 0.0
        for way in ("cut", "refuse"):
            before, running = drafted(flock.server), both.map(serve, flock.engines)
            until(lambda: drafted(flock.server) > before + 4)  # noqa: B023 - it is called here
            for link in flock.links:
                setattr(link, way, True)  # kept without a word, or refused
                if way == "refuse":
                    link.break_all()
            list(running)
            assert min(steps()) > 0.9 * expected["steps"]
            for link in flock.links:
                link.heal()
            until(lambda: max(steps()) < expected["steps"])


def drafted(server: Server) -> float:
    """Calls that were answered with drafts."""
    found = status.read(server.http_url, server.metrics_url.removeprefix("http://").removesuffix("/metrics"))
    calls = [each for each in found.samples if each.name == "covey_draft_calls_total"]
    return sum(each.value for each in calls if each.labels["outcome"] == "drafted")
