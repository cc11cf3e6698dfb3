"""The real server with little KV memory: two peaks of callers, and what a move of blocks takes beside a plain copy."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covey import prompts
from covey.types import JsonDict
from covey_client import Client
from covey_client.reports import Reports
from loadtest.bench import scrape
from loadtest.bench.session import Session
from loadtest.bench.statistics import percentile

PEAK, QUIET = 48, 2  # callers
PEAK_SECONDS, QUIET_SECONDS, QUICK_SECONDS = 20.0, 15.0, 4.0
TOKENS = 128
POOL_MB = 8
MOVED = 512  # blocks
PROFILE = """
models = ["target", "controller", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", "draft_general",
          "draft_code"]
[target]
threads = 1
kv_memory_mb = {pool}
[speculation]
policy = "covey"
drafters = ["draft_general", "draft_code"]
[memory]
policy = "{policy}"
calm_seconds = 2.0
"""


@dataclass(frozen=True)
class Peaks:
    """What one server made of both peaks."""

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


def play(session: Session, folder: Path, policy: str, *, quick: bool) -> Peaks:
    """Quiet, a peak, quiet, a peak, on a server of its own."""
    profile = folder / f"elastic-{policy}.toml"
    profile.write_text(PROFILE.format(pool=POOL_MB, policy=policy))
    options = session.wanted.options()
    asked = [prompt for domain in prompts.DOMAINS for prompt in prompts.load(domain)]
    tokens = seconds = 0.0
    latencies: list[float] = []
    gained = 0
    with session.server(replace(options, profile=str(profile))) as server:
        url = server.metrics_url
        reports = Reports(server.http_url)
        for callers, lasts in ((QUIET, QUIET_SECONDS), (PEAK, PEAK_SECONDS)) * 2:
            before, began = scrape.read(url), time.monotonic()
            ended = _call(server.grpc_url, asked, callers, QUICK_SECONDS if quick else lasts)
            after, took = scrape.read(url), time.monotonic() - began
            gained = max(gained, int(reports.memory()["blocks_gained"]))
            if callers == PEAK:
                tokens += _grew(before, after, "covey_generation_tokens_total")
                seconds += took
                latencies += ended
        found = reports.memory()
        preempted = scrape.read(url).get(("covey_preemptions_total", ""), 0.0)
    return Peaks(tokens, seconds, latencies, preempted, gained, found["operations"], found["pauses"])


def _grew(before: scrape.Counters, after: scrape.Counters, name: str) -> float:
    return after.get((name, ""), 0.0) - before.get((name, ""), 0.0)


def _call(url: str, asked: Sequence[str], callers: int, seconds: float) -> list[float]:
    """Requests one after the other from each of so many callers; how long those took that ended in time."""
    until = time.monotonic() + seconds
    numbers, found = itertools.count(), []

    def run() -> None:
        with Client(url, timeout=120) as client:
            while (began := time.monotonic()) < until:
                prompt = asked[next(numbers) % len(asked)]
                client.generate(prompt, max_tokens=TOKENS, min_tokens=TOKENS, temperature=1.0, seed=1)
                found.append(time.monotonic() - began)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def move_over_memcpy() -> float:
    """Bytes a second of a contraction's move over those of a plain copy of as many, both the best of a few."""
    import torch

    from covey.models.reserve import Reserve

    pool = Reserve(8, 4, 64, 16, blocks=2 * MOVED, most=2 * MOVED, dtype=torch.bfloat16)
    rng = np.random.default_rng(0)
    old, new = rng.permutation(MOVED) + MOVED, rng.permutation(MOVED)
    source = torch.empty(MOVED * pool.bytes_per_block // 2, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    move = _best(lambda: pool.move_blocks(old, new))
    return _best(lambda: target.copy_(source)) / move


def _best(call: Callable[[], object], count: int = 15) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
