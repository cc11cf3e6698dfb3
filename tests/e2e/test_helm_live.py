"""The chart's commands, probes, metrics and drain against the real server, and two of its replicas behind a proxy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from covey_client import Client
from loadtest import records
from tests.docker.charts import of_kind, render
from tests.e2e.link import Link
from tests.e2e.pods import ROOT, SECRET, Pod, targets
from tests.e2e.serving import post

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(500)]

SECONDS = 240.0
STREAMS, TOKENS = 8, 300
LOOPBACK = "0100007F"  # as the kernel prints 127.0.0.1, by itself or in an address of IPv6
SMALL = """
models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "draft_general"]
[target]
threads = 1
kv_memory_mb = 256
[speculation]
drafters = ["draft_general"]
costs = ""
"""
VALUES = {"profiles": {"small": SMALL}, "targets": {"profile": "small"}, "autoscaling": {"enabled": True}}
GAUGES = {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"}  # what routers read


@dataclass(frozen=True)
class Started:
    pods: list[Pod]
    first: list[subprocess.CompletedProcess[str]]  # what a startup probe found at once
    metrics: list[str]  # when it was ready, before anybody asked anything


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with targets(2, VALUES, tmp_path_factory.mktemp("pods")) as pods:
        first = [pod.run(pod.spec["startupProbe"]["exec"]["command"]) for pod in pods]
        for pod in pods:
            until(pod.ready, pod)
        yield Started(pods, first, [get(f"{pod.url}/metrics") for pod in pods])


@pytest.fixture(scope="module")
def pods(started: Started) -> list[Pod]:
    return started.pods


def until(true: Callable[[], bool], pod: Pod) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert pod.running, pod.said()
        assert time.monotonic() < end, pod.said()
        time.sleep(0.2)  # each question is a process of its own, and the pod starts meanwhile


def get(url: str) -> str:
    with urllib.request.urlopen(f"http://{url}", timeout=60) as response:
        return str(response.read().decode())


def gauges(text: str) -> set[str]:
    """Those that have a value."""
    kinds = set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))
    return kinds & set(re.findall(r"^([\w:]+)(?:\{.*\})? \S+$", text, re.MULTILINE))


def test_a_pod_is_ready_when_it_serves_and_not_before(started: Started) -> None:
    for pod, first in zip(started.pods, started.first):
        assert first.returncode != 0
        assert "not ready" in first.stderr
        assert pod.run(pod.spec["startupProbe"]["exec"]["command"]).returncode == 0
        assert pod.run(pod.spec["livenessProbe"]["exec"]["command"]).returncode == 0
        found = post(f"{pod.url}/v2/models/covey/generate", {"text_input": "Once", "max_tokens": 4})[1]
        assert json.loads(found)["num_output_tokens"] == 4


def test_what_scales_and_routes_is_there_before_the_first_request(started: Started) -> None:
    named = of_kind(render(VALUES), "HorizontalPodAutoscaler")["spec"]["metrics"]
    for text in started.metrics:
        assert {each["pods"]["metric"]["name"] for each in named} | GAUGES <= gauges(text)
        assert re.search(r'^covey_requests_waiting\{model="covey"\} 0$', text, re.MULTILINE)


def test_only_the_fronts_ports_are_open_and_the_secret_is_nowhere(pods: list[Pod]) -> None:
    pod = pods[0]
    table = pod.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout
    listening = {
        (int(port, 16), address.endswith(LOOPBACK))
        for address, port, state in re.findall(r"^ *\d+: (\w+):(\w+) \S+ (\w+)", table, re.MULTILINE)
        if state == "0A"
    }
    assert {port for port, loopback in listening if not loopback} == {8010, 8011}
    assert {8000, 8001, 8002} <= {port for port, loopback in listening if loopback}
    words = pod.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout
    assert SECRET not in words
    assert SECRET not in pod.said()
    assert pod.run(["touch", "/opt/covey/here"]).returncode != 0
    assert pod.run(["stat", "-c", "%a", "/var/lib/covey/kept"]).stdout.strip()[-2:] == "00", "of its user alone"


def test_the_job_of_a_load_test_offers_its_load(pods: list[Pod], tmp_path: Path) -> None:
    """Its arguments, with a pod's address for the name of the Service."""
    given = {"loadtest": {"enabled": True, "args": ["--shape", "poisson:4", "--seconds", "3", "--tokens", "4:8"]}}
    names = {"/reports": str(tmp_path)}
    names |= {f"covey:{number}": f"{pods[0].host.address}:{number}" for number in (8010, 8011)}
    job = of_kind(render(given), "Job", "covey-loadtest")["spec"]
    words = "\n".join(job["template"]["spec"]["containers"][0]["args"])
    for name, here in names.items():
        words = words.replace(name, here)
    command = [sys.executable, "-m", "loadtest", *words.split("\n")]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [folder] = [path.parent for path in tmp_path.glob("*/run.json")]
    found = records.load(folder)
    assert found.complete
    assert found.records
    assert all(record.finished for record in found.records)
    assert any(reading.value("covey_requests_running") is not None for reading in found.readings)


def test_a_replica_that_is_killed_takes_no_stream_along(pods: list[Pod]) -> None:
    settings: dict[str, Any] = {"max_tokens": TOKENS, "min_tokens": TOKENS, "temperature": 1.0}
    with Client(":".join(map(str, pods[1].grpc)), timeout=SECONDS) as client:
        known = [client.generate("Once upon a time", seed=seed, **settings).text for seed in range(STREAMS)]
    began = [threading.Event() for _ in range(STREAMS)]
    found: dict[int, str] = {}
    with Link(pods[0].grpc, others=[pods[1].grpc]) as link:

        def ask(seed: int) -> None:
            with Client(link.address, timeout=SECONDS) as client:  # a connection of its own
                texts = []
                for chunk in client.stream("Once upon a time", seed=seed, resume=True, **settings):
                    texts.append(chunk.text)
                    began[seed].set()
                found[seed] = "".join(texts)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(STREAMS)]
        for thread in threads:
            thread.start()
        assert all(event.wait(SECONDS) for event in began)
        before = len(found)
        pods[0].kill()
        for thread in threads:
            thread.join(SECONDS)
    assert before < STREAMS, "the machine is too fast for this test: more tokens"
    assert link.taken[pods[0].grpc] > 0
    assert found == dict(enumerate(known)), pods[1].said()


def test_a_pod_that_is_told_to_go_drains_within_its_grace(pods: list[Pod]) -> None:
    pod = pods[1]
    until(pod.ready, pod)
    whole = of_kind(render(VALUES), "StatefulSet", "covey")["spec"]["template"]["spec"]
    begun = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        with Client(":".join(map(str, pod.grpc)), timeout=SECONDS) as client:
            tokens = 0
            for chunk in client.stream("Once upon a time", max_tokens=TOKENS, min_tokens=TOKENS, seed=1):
                tokens += len(chunk.tokens)
                begun.set()
            answers.append(tokens)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(SECONDS)
    told = time.monotonic()
    assert pod.run(pod.spec["lifecycle"]["preStop"]["exec"]["command"]).returncode == 0
    assert pod.ready(), "until it is told it serves whoever has not heard yet"
    again = threading.Thread(target=ask)
    begun.clear()
    again.start()
    assert begun.wait(SECONDS)
    pod.terminate()
    until(lambda: not pod.ready(), pod)
    assert pod.wait(SECONDS) == 0, pod.said()
    assert time.monotonic() - told < whole["terminationGracePeriodSeconds"]
    for thread in (asking, again):
        thread.join(SECONDS)
    assert answers == [TOKENS, TOKENS]
