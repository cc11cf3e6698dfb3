"""The real server with little KV memory: two peaks of callers, and what a move of blocks takes beside a plain copy.

Drafters have KV memory for as many tokens as all callers' texts come to, so that little of what they give is more than
they need.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covey import prompts
from covey.training.aligned.folders import PROFILE as PAIR_PROFILE
from covey.types import JsonDict
from covey_client import Client
from covey_client.reports import Reports
from loadtest.bench import scrape
from loadtest.bench.session import Session
from loadtest.bench.statistics import percentile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PEAK, QUIET = 48, 2  # callers
PEAK_SECONDS, QUIET_SECONDS, QUICK_SECONDS = 20.0, 15.0, 4.0
TOKENS = 128
SHOWN = ("throughput", "latency_p99", "preemptions", "blocks_gained")
PATIENCE = 600.0  # seconds for a request: a busy machine is no error
MOVED = 512  # blocks
PROFILE = """
models = {models}
[target]
threads = 1
kv_memory_mb = {pool}
{target}
[speculation]
policy = "covey"
drafters = {drafters}
[drafter]
kv_memory_mb = {cache}
{drafter}
[memory]
policy = "{policy}"
counted = "{counted}"
calm_seconds = 2.0
"""


@dataclass(frozen=True)
class Arm:
    """When drafters leave, and what of them the pool has then."""

    name: str
    policy: str
    counted: str = "process"


@dataclass(frozen=True)
class Models:
    """A target and its drafters, and how much KV memory they have. The lines of the profile say where they are."""

    drafters: Sequence[str]
    pool_mb: int
    cache_mb: int
    target: str = ""
    drafter: str = ""

    def profile(self, arm: Arm) -> str:
        """Of a server of these."""
        models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", *self.drafters]
        return PROFILE.format(
            models=json.dumps(models),
            pool=self.pool_mb,
            target=self.target,
            drafters=json.dumps(self.drafters),
            cache=self.cache_mb,
            drafter=self.drafter,
            policy=arm.policy,
            counted=arm.counted,
        )


BUNDLED = Models(["draft_general", "draft_code"], pool_mb=8, cache_mb=6)  # 1,024 and 16,384 tokens of bfloat16


def aligned(folder: Path) -> Models:
    """A pair that `covey.training aligned` wrote. Its profile has KV memory of 65,536 tokens: the pool gets a sixteenth
    of that here, the drafter a fourth."""
    written = tomllib.loads((folder / PAIR_PROFILE).read_text(encoding="utf-8"))
    target, drafter = written["target"], written["drafter"]
    return Models(
        written["speculation"]["drafters"],
        max(1, target["kv_memory_mb"] // 16),
        max(1, drafter["kv_memory_mb"] // 4),
        _lines(target, "folder", "dtype"),
        _lines(drafter, "folders", "dtype"),
    )


def _lines(section: JsonDict, *keys: str) -> str:
    return "\n".join(f"{key} = {json.dumps(section[key])}" for key in keys)


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


def play(session: Session, folder: Path, models: Models, arm: Arm, *, quick: bool) -> Peaks:
    """Quiet, a peak, quiet, a peak, on a server of its own."""
    profile = folder / "elastic.toml"
    profile.write_text(models.profile(arm))
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
        with Client(url, timeout=PATIENCE) as client:
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
