"""Servers and ingress on three nodes: whatever becomes of a node or a replica, no text changes."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.in_ray.nodes import Application, application, until
from tests.in_ray.streams import Streams, bodies, completion, post, read, same, whole

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

STREAMS = 32
MODELS = '"target", "tokenize", "detokenize", "covey"'
TARGET = f"""
models = [{MODELS}, "draft_code"]
[target]
threads = 1
[speculation]
policy = "fixed:3"
drafters = ["draft_code"]
"""


@pytest.fixture(scope="module")
def covey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "target.toml").write_text(TARGET)
    with application(folder, {"profile": str(folder / "target.toml")}, 2) as made:
        yield made


def test_the_ingress_speaks_openais_api(covey: Application) -> None:
    with urllib.request.urlopen(f"{covey.url}/v1/models", timeout=10) as answer:
        assert [each["id"] for each in json.load(answer)["data"]] == ["covey"]
    told, found = read(covey.url, completion(1, 16)), whole(covey.url, completion(1, 16))
    assert told.texts[0] == found["choices"][0]["text"]
    assert told.ended
    for path, body, status, named in (
        ("/v1/completions", completion(1, 16, temperature=-1), 400, "temperature"),
        ("/v1/completions", [], 400, "object"),
        ("/v1/%2e%2e/v2/models/covey/config", {}, 404, "metrics"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(covey.url + path, json.dumps(body).encode(), timeout=10)
        with refused.value as answer:
            assert answer.code == status
            assert named in json.load(answer)["error"]["message"]


def test_a_stream_without_a_seed_has_one_by_which_it_can_be_repeated(covey: Application) -> None:
    asked = {name: value for name, value in completion(1, 16).items() if name != "seed"}
    seeds = []
    with post(covey.url, asked) as answer:
        for line in answer:
            if b'"seed"' in line:
                seeds.append(json.loads(line[len(b"data: ") :])["choices"][0]["seed"])
    assert len(seeds) == 1
    assert whole(covey.url, {**asked, "seed": seeds[0]})["choices"][0]["text"]


def test_who_leaves_is_not_served_any_longer(covey: Application) -> None:
    def cancelled() -> float:
        return sum(covey.figure("covey_requests_total", node, outcome="cancelled") for node in covey.nodes)

    before = cancelled()
    connection = http.client.HTTPConnection("127.0.0.1", covey.port, timeout=30)
    body = json.dumps(completion(1, 2000))
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    answer.close()
    connection.close()
    until(lambda: cancelled() > before, 60.0)


def test_a_replica_that_is_to_go_ends_its_streams_first(covey: Application) -> None:
    asked = bodies(8, 150)
    expected = Streams(covey.url, asked).end()
    running, before = Streams(covey.url, asked), covey.broke_off()
    running.begin()
    covey.run(1)
    assert same(running.end(), expected)
    covey.settle(1)
    assert covey.broke_off() == before
    covey.run(2)
    covey.settle(2)


def test_streams_of_a_node_that_dies_go_on_elsewhere(covey: Application) -> None:
    asked = bodies(STREAMS, 100)
    expected = Streams(covey.url, asked).end()
    running, before = Streams(covey.url, asked), covey.broke_off()
    running.begin()
    covey.kill(max(covey.nodes, key=lambda node: covey.figure("covey_requests_running", node)))
    assert same(running.end(), expected)
    assert covey.broke_off() > before
    until(lambda: len(covey.servers()) == 1, 20.0)  # what was that node's has ended


def test_a_replica_that_comes_under_load_takes_its_part(covey: Application) -> None:
    """On a node that comes in another's place."""
    if len(covey.nodes) > 1:
        covey.kill(covey.nodes[-1])
    asked = bodies(8, 100)
    expected = Streams(covey.url, asked).end()
    running = Streams(covey.url, asked)
    running.begin()
    covey.add()
    assert same(running.end(), expected)
    covey.settle(2)
    running = Streams(covey.url, asked)  # where their prompts' beginnings are known
    running.begin()
    whole(covey.url, asked[0])
    assert same(running.end(), expected)
    until(lambda: covey.figure("vllm:prompt_tokens_total", covey.nodes[-1]) > 0, 10.0)


def test_a_rolling_update_changes_no_text(covey: Application) -> None:
    asked, before = bodies(8, 100), {server.pid for server in covey.servers()}
    expected, found, done = Streams(covey.url, asked).end(), [], threading.Event()

    def load() -> None:
        while not done.is_set():
            found.append(Streams(covey.url, asked).end())

    thread = threading.Thread(target=load)
    thread.start()
    try:
        covey.args["drain_seconds"] = 20
        covey.run(2)
        until(lambda: not before & {server.pid for server in covey.servers()})
        covey.settle(2)
    finally:
        done.set()
        thread.join()
    assert len(found) > 1
    assert all(same(each, expected) for each in found)
