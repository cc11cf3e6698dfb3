"""Two servers' targets and a third one's drafters: texts unchanged and nobody hangs, whatever happens to the third."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from covey.launcher import FREE, Options, Server
from covey_client import Client
from loadtest.bench.derive import private
from tests.e2e.hosts import Host, hosts
from tests.e2e.link import Link
from tests.e2e.serving import total

pytestmark = pytest.mark.e2e

PROMPT = "User: What did you do at the weekend?\nAssistant:"
MODELS = '"target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble"'
TARGETS = """
models = [{models}, "draft_remote"]

[speculation]
policy = "fixed:3"
drafters = ["draft_remote"]
draft_deadline_ms = 1000

[star]
servers = ["draft_remote={address}/draft_code"]
secret = "{secret}"
"""
DRAFTERS = """
models = ["draft_code"]

[star]
callers = "{callers}"
"""
SEEDS = (1, 2)
BACK_SECONDS = 10.0  # in which drafting begins anew when the drafters' server can be reached again


@dataclass
class Star:
    """`links[i]` is the way from target i to the drafters."""

    targets: list[Server]
    links: list[Link]
    drafters: Server
    options: Options
    host: Host  # of the drafters


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Star]:
    folder = tmp_path_factory.mktemp("star")
    with ExitStack() as stack:
        at, *others = hosts(3, stack)
        callers = private(folder / "callers", "east secret-of-the-east-server\nwest secret-of-the-west-server 2\n")
        profile = folder / "drafters.toml"
        profile.write_text(DRAFTERS.format(callers=callers))
        ports = [at.free_port() for _ in range(3)]
        options = Options("", *ports, profile=str(profile), stop_seconds=3.0, drain_seconds=1.0)
        drafting = replace(options, log_file=folder / "drafters.log")
        made = Star([], [], at.server(drafting), drafting, at)
        stack.callback(lambda star: star.drafters.kill(), made)  # which may be another one by then
        for name, host in zip(("east", "west"), others):
            link = stack.enter_context(Link((at.address, drafting.grpc_port), host.near))
            secret = private(folder / f"{name}.secret", f"secret-of-the-{name}-server\n")
            own = folder / f"{name}.toml"
            own.write_text(TARGETS.format(models=MODELS, address=link.address, secret=secret))
            options = Options("", FREE, FREE, FREE, profile=str(own), drain_seconds=5.0)
            server = host.server(replace(options, log_file=folder / f"{name}.log"))
            stack.callback(server.kill)  # in order it takes long; that is for `test_drain` to see
            made.links.append(link)
            made.targets.append(server)
        yield made


class Running:
    """Streams of both targets at once, drafted for as far as that can be had."""

    def __init__(self, star: Star, tokens: int) -> None:
        self._begun = threading.Semaphore(0)
        self._settings = {"max_tokens": tokens, "min_tokens": tokens, "temperature": 1.0}
        pool = ThreadPoolExecutor(len(SEEDS) * len(star.targets))
        self._runs = {
            (at, seed): pool.submit(self._run, server, seed) for at, server in enumerate(star.targets) for seed in SEEDS
        }
        for _ in self._runs:
            assert self._begun.acquire(timeout=120)

    def end(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {key: run.result(240) for key, run in self._runs.items()}

    def _run(self, server: Server, seed: int) -> tuple[int, ...]:
        tokens: list[int] = []
        with Client(server.grpc_url) as client:
            for chunk in client.stream(PROMPT, seed=seed, speculation="fixed:3", timeout=240, **self._settings):
                if len(tokens) <= 10 < len(tokens) + len(chunk.tokens):
                    self._begun.release()
                tokens += chunk.tokens
        return tuple(tokens)


def plain(star: Star, tokens: int) -> dict[tuple[int, int], tuple[int, ...]]:
    settings = {"max_tokens": tokens, "min_tokens": tokens, "temperature": 1.0, "speculation": "off"}
    with Client(star.targets[0].grpc_url) as client:
        found = {seed: client.generate(PROMPT, seed=seed, timeout=120, **settings).tokens for seed in SEEDS}
    return {(at, seed): found[seed] for at in range(len(star.targets)) for seed in SEEDS}


def drafted(server: Server) -> int:
    """Of a short request."""
    with Client(server.grpc_url) as client:
        answer = client.generate(PROMPT, max_tokens=24, min_tokens=24, speculation="fixed:3", timeout=60)
    return answer.usage.draft_tokens


def back(star: Star, seconds: float = BACK_SECONDS) -> list[float]:
    """How long it takes until every target is drafted for."""
    started, found = time.monotonic(), []
    for server in star.targets:
        while drafted(server) < 18:  # three in each round, all accepted
            assert time.monotonic() - started < seconds, "drafting did not begin anew"
        found.append(time.monotonic() - started)
    return found


def test_one_drafter_serves_the_targets_of_two_servers_and_no_text_changes(star: Star) -> None:
    expected = plain(star, 80)
    back(star)
    assert Running(star, 80).end() == expected
    time.sleep(1.0)  # counters are written a few times a second
    for origin in ("east", "west"):
        assert total(star.drafters, "covey_draft_calls_total", origin=origin, outcome="drafted") > 20
    assert total(star.drafters, "covey_draft_service_seconds_total") > 0
    assert "secret-of-the" not in "".join(server.log_text() for server in (*star.targets, star.drafters))


def test_a_way_that_is_slow_loses_or_is_cut_costs_speed_alone(star: Star) -> None:
    expected = plain(star, 120)
    back(star)
    running = Running(star, 120)
    star.links[0].delay = 0.05
    star.links[1].break_all()  # connections are lost, new ones can be made
    time.sleep(1.0)
    star.links[0].cut = True  # nothing comes through, and nobody says so
    star.links[1].refuse = True
    time.sleep(1.0)
    for link in star.links:
        link.heal()
    assert running.end() == expected
    back(star)


def test_drafters_that_are_killed_and_started_anew_serve_again(star: Star) -> None:
    expected = plain(star, 200)
    back(star)
    running = Running(star, 200)
    star.drafters.kill()
    star.drafters = star.host.server(star.options)
    assert running.end() == expected
    found = back(star)
    print(f"drafted for again {max(found):.1f} s after the drafters' server was ready")
