"""Reads the emulated pairs, the profiles `profiles/emulated-*.toml`, and draws requests for them.

Timings and their origin are in `profiles/costs/`, memory and acceptance in the profiles. Lengths are log-normal, with
the means of ShareGPT that the PagedAttention paper printed (its Figure 11).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from covey.contracts import profile
from covey.contracts.profile import Profile, costs_file
from covey.emulated.opening import acceptance
from covey.planner.cost_table import load_costs
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable

LONGEST = 1000
PROMPT, OUTPUT = 161, 338  # mean tokens of ShareGPT's requests
SPREAD = 0.8  # deviation of their logarithms


@dataclass(frozen=True)
class EmulatedPair:
    """Names a target and its drafters by their profile, and describes their requests."""

    name: str

    @cached_property
    def profile(self) -> Profile:
        return profile.load(self.name)

    @cached_property
    def table(self) -> CostTable:
        return load_costs(costs_file(self.profile.emulated.costs))

    @property
    def drafters(self) -> tuple[str, ...]:
        return self.profile.speculation.drafters

    @cached_property
    def rates(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """Return acceptance by drafter and tenant, "" being all others."""
        return {name: acceptance(self.profile.emulated.acceptance, name) for name in self.drafters}

    @property
    def domains(self) -> Mapping[str, str]:
        """Return the tenants of requests, each with the drafter that its requests name: its specialist, or "" for
        none."""
        return {tenant: name for name, rates in self.rates.items() for tenant in rates if tenant} or {"": ""}

    @property
    def blocks(self) -> int:
        settings = self.profile.target
        return (settings.kv_memory_mb << 20) // (settings.block_size * self.profile.emulated.kv_token_bytes)

    def capacity(self) -> float:
        """Return the requests a second that plain decoding can finish, prefill included, when the memory is full."""
        verify = Surface(self.table.verify)
        budget = self.profile.scheduler.token_budget
        held = self.blocks * self.profile.target.block_size
        rows = min(self.profile.scheduler.max_running, held // (PROMPT + OUTPUT // 2))
        return 1.0 / (OUTPUT * verify(rows, rows) / rows + PROMPT * verify(1, budget) / budget)


PAIRS = (
    EmulatedPair("emulated-7b"),
    EmulatedPair("emulated-13b-40g"),
    EmulatedPair("emulated-32b-2x48g"),
    EmulatedPair("emulated-70b-4x80g"),
    EmulatedPair("emulated-7b-five"),
)


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """The lengths of one request and its answer, and its domain."""

    prompt: int
    output: int
    domain: str


def requests(pair: EmulatedPair, count: int, seed: int) -> list[RequestLengths]:
    """Return this many requests, the same for every policy."""
    rng = random.Random(f"{seed} requests")
    domains = tuple(pair.domains)
    return [
        RequestLengths(draw_length(PROMPT, SPREAD, rng), draw_length(OUTPUT, SPREAD, rng), rng.choice(domains))
        for _ in range(count)
    ]


def draw_length(mean: float, spread: float, rng: random.Random) -> int:
    return max(4, min(LONGEST, round(rng.lognormvariate(math.log(mean) - spread**2 / 2, spread))))
