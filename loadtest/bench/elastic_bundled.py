"""Plays two peaks of callers on the real server with little KV memory, 1,024 tokens of bfloat16.

Drafters have KV memory for as many tokens as all callers' texts come to, 16,384, so that little of what they give is
more than they need.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from covey import prompts
from covey.contracts.types import JsonDict
from covey.server import Server
from covey_client import Client, status
from covey_client.rates import MetricsSnapshot, Span
from covey_client.reports import Reports
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import percentile

PEAK, QUIET = 48, 2  # callers
PEAK_SECONDS, QUIET_SECONDS, QUICK_SECONDS = 20.0, 15.0, 4.0
TOKENS = 128
SHOWN = ("throughput", "latency_p99", "preemptions", "blocks_gained")
FLUSHED = 0.6  # seconds after which the server has brought its counters up to date
PATIENCE = 600.0  # seconds for a request: a busy machine is no error
PROFILE = """
models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", "draft_general", "draft_code"]
[target]
threads = 1
kv_memory_mb = 8
[speculation]
policy = "covey"
drafters = ["draft_general", "draft_code"]
[drafter]
kv_memory_mb = 6
[memory]
policy = "{policy}"
calm_seconds = 2.0
"""


@dataclass(frozen=True)
class Peaks:
    """Holds what one server made of both peaks."""

    tokens: float
    seconds: float
    latencies: Sequence[float]  # of requests that ended in a peak
    preemptions: float
    blocks_gained: int
    operations: Mapping[str, int]
    pauses: Mapping[str, Sequence[float]]

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds

    def as_json(self) -> JsonDict:
        return {
            "throughput": self.throughput,
            "latency_p99": percentile(self.latencies, 0.99),
            "preemptions": self.preemptions,
            "blocks_gained": self.blocks_gained,
            "operations": dict(self.operations),
        }


def play(session: Session, folder: Path, policy: str) -> Peaks:
    """Play quiet, a peak, quiet and a peak on a server of its own."""
    profile = folder / "elastic.toml"
    profile.write_text(PROFILE.format(policy=policy))
    quick = session.wanted.size == QUICK
    asked = [prompt for domain in prompts.DOMAINS for prompt in prompts.load(domain)]
    tokens = seconds = 0.0
    latencies: list[float] = []
    gained = 0
    with session.server(session.wanted.options(profile)) as server:
        reports = Reports(server.http_url)
        for callers, lasts in ((QUIET, QUIET_SECONDS), (PEAK, PEAK_SECONDS)) * 2:
            before, began = _look(server), time.monotonic()
            ended = _call(server.grpc_url, asked, callers, QUICK_SECONDS if quick else lasts)
            after, took = _look(server), time.monotonic() - began
            gained = max(gained, int(reports.memory()["blocks_gained"]))
            if callers == PEAK:
                tokens += Span(before, after).grew("covey_generation_tokens_total") or 0.0
                seconds += took
                latencies += ended
        found = reports.memory()
        preempted = _look(server).value("covey_preemptions_total") or 0.0
    return Peaks(tokens, seconds, latencies, preempted, gained, found["operations"], found["pauses"])


def _look(server: Server) -> MetricsSnapshot:
    """Read the server's counters, when it has brought them up to date."""
    time.sleep(FLUSHED)
    samples = status.read(server.http_url, server.metrics_url.split("/")[2]).samples
    return MetricsSnapshot(time.monotonic(), samples)


def _call(url: str, asked: Sequence[str], callers: int, seconds: float) -> list[float]:
    """Have so many callers ask one request after the other; return how long those took that ended in time."""
    until = time.monotonic() + seconds
    numbers, found = itertools.count(), []

    def run(_caller: int) -> None:
        with Client(url, timeout=PATIENCE) as client:
            while (began := time.monotonic()) < until:
                prompt = asked[next(numbers) % len(asked)]
                client.generate(prompt, max_tokens=TOKENS, min_tokens=TOKENS, temperature=1.0, seed=1)
                found.append(time.monotonic() - began)

    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(run, range(callers)))
    return found
