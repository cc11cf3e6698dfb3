"""Servers by a command that speaks OpenAI's API: where prompts go, how many there are, and a node that falls silent."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from ray import serve

from tests.in_ray.nodes import Application, application, until
from tests.in_ray.streams import Streams, bodies, completion, same, whole

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

PROFILE = """
models = ["target", "tokenize", "detokenize", "covey", "draft_general"]
[target]
threads = 1
[scheduler]
max_running = 4
[speculation]
drafters = ["draft_general"]
"""
PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--front-grpc-port", "0")
OFTEN = {"RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1"}
GROUPS, EACH, AT_ONCE = 6, 8, 4


@pytest.fixture(scope="module")
def covey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    folder = tmp_path_factory.mktemp("ray")
    profile = folder / "server.toml"
    profile.write_text(PROFILE)
    words = [sys.executable, "-m", "covey.launcher", "--profile", str(profile), *PORTS, "--front-http-port", "{port}"]
    with application(folder, {"command": words}, 2, OFTEN) as made:
        yield made


def hit_rate(covey: Application, name: str, session: str = "") -> float:
    """Tokens of prompts that had KV already, of a mix of prompts that begin alike in groups."""

    def ask(number: int) -> tuple[int, int]:
        group, own = number % GROUPS, number // GROUPS
        rules = " ".join(
            f"Rule {rule} of {name}, group {group}: always be kind to number {rule}." for rule in range(12)
        )
        body = completion(
            own, 4, prompt=f"Group {group} of {name}. {rules}\nUser: What is {own} and {own}?\nAssistant:"
        )
        usage = whole(covey.url, body, {"x-session-id": session} if session else {})["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(ask, range(GROUPS * EACH)))
    return sum(cached for cached, _ in found) / sum(prompt for _, prompt in found)


def test_prompts_that_begin_alike_find_their_kv_as_on_one_server(covey: Application) -> None:
    alone = hit_rate(covey, "one", session="all of them")
    both = hit_rate(covey, "both")
    print(f"hit rate {both:.2f} on two servers, {alone:.2f} on one")
    assert alone > 0.5
    assert both >= 0.9 * alone
    assert all(covey.figure("vllm:prompt_tokens_total", node) > 100 for node in covey.nodes)


def test_streams_of_a_node_that_falls_silent_go_on_elsewhere(covey: Application) -> None:
    asked = bodies(8, 150)
    expected = Streams(covey.url, asked).end()
    running, node = Streams(covey.url, asked), covey.nodes[0]
    running.begin()
    paused = [each for one in covey.processes(node) for each in (one, *one.children(recursive=True))]
    for process in paused:
        process.suspend()
    try:
        assert same(running.end(), expected)
    finally:
        covey.kill(node)
        for process in paused:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    covey.add()
    covey.settle(2)


def test_there_are_as_many_servers_as_the_load_needs(covey: Application) -> None:
    delays = {"upscale_delay_s": 1, "downscale_delay_s": 2, "look_back_period_s": 11, "target_ongoing_requests": 4}
    scaled = {"min_replicas": 1, "max_replicas": 2, **delays}
    covey.run(0, autoscaling_config=scaled)
    covey.settle(1)
    numbers = itertools.count()
    with ThreadPoolExecutor(12) as threads:
        done = []

        def loaded() -> bool:
            """Keep twelve requests there, where four run at once."""
            while len(done) - sum(each.done() for each in done) < 12:
                done.append(threads.submit(whole, covey.url, completion(next(numbers), 100)))
            states = serve.status().applications["covey"].deployments["Server"].replica_states
            return states.get("RUNNING") == 2

        until(loaded)
    assert all(each.result()["choices"][0]["text"] for each in done)
    covey.settle(1)
