"""Emulated pairs: which cost table, how often drafts are right, how much KV memory, how long requests are.

Timings and their origin are in `profiles/costs/`. What is here is assumed, by this arithmetic:

blocks       of 16 tokens: nine tenths of the cards' memory less the weights, over the target's KV bytes a token
acceptance   a constant a_i; 0.6 for the 7B pair reproduces Nightjar's Figure 2 with the table's draft times
lengths      log-normal, 160 and 340 tokens on average: about ShareGPT's, of which every paper here draws requests
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from covey.planner.cost_table import CostTable, Surface
from covey.profile import profiles_folder

DRAFTER = "draft_emulated"
PROMPT, OUTPUT = 160, 340  # mean tokens
SPREAD = 0.8  # of their logarithms
LONGEST = 1600
BLOCK = 16
MAX_ROWS = 256


@dataclass(frozen=True)
class Pair:
    """`rates`: a_i by drafter and by tenant, "" being all others. `domains`: tenants of the requests, each with the
    drafter that its requests name, or "" to name none."""

    name: str
    title: str
    costs: str
    blocks: int
    rates: Mapping[str, Mapping[str, tuple[float, ...]]]
    domains: Mapping[str, str] = field(default_factory=lambda: {"": ""})

    def table(self) -> CostTable:
        return CostTable.load(profiles_folder() / "costs" / f"{self.costs}.json")

    @property
    def drafters(self) -> tuple[str, ...]:
        return tuple(self.rates)

    def acceptance(self) -> float:
        """Of a request's own drafter, over the domains."""
        own = [self.rates[drafter or self.drafters[0]] for drafter in self.domains.values()]
        return sum(rates.get(domain, rates[""])[0] for domain, rates in zip(self.domains, own)) / len(own)

    def capacity(self) -> float:
        """Requests a second that plain decoding can finish, prefill included, when the memory is full."""
        verify = Surface(self.table().verify)
        rows = min(MAX_ROWS, self.blocks * BLOCK // (PROMPT + OUTPUT // 2))
        prefill = verify(1, 2048) / 2048 * PROMPT
        return 1.0 / (OUTPUT * verify(rows, rows) / rows + prefill)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of one request."""

    prompt: int
    output: int
    domain: str


def requests(pair: Pair, count: int, seed: int) -> list[Lengths]:
    """The same for every policy."""
    rng = random.Random(f"{seed} requests")
    domains = tuple(pair.domains)
    return [Lengths(_length(PROMPT, rng), _length(OUTPUT, rng), rng.choice(domains)) for _ in range(count)]


def _length(mean: float, rng: random.Random) -> int:
    return max(4, min(LONGEST, round(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD))))


def _single(name: str, title: str, blocks: int, rate: float) -> Pair:
    return Pair(name, title, f"emulated-{name}", blocks, {DRAFTER: {"": (rate,)}})


SPECIALISTS = {
    "code": "draft_code",
    "translation": "draft_translate",
    "summarisation": "draft_summary",
    "chat": "draft_chat",
    "math": "draft_math",
}
ALIEN = 0.4  # a specialist's acceptance outside its domain

PAIRS = (
    _single("7b-24g", "7B + 0.5B, 24 GB", 5600, 0.6),  # 57 kB a token
    _single("13b-40g", "13B + 68M, 40 GB", 750, 0.55),  # 819 kB a token
    _single("32b-2x48g", "32B + 0.5B, 2 x 48 GB", 4700, 0.6),  # 262 kB a token
    _single("70b-4x80g", "70B + 1B, 4 x 80 GB", 27000, 0.7),  # 328 kB a token
    Pair(
        "7b-24g-five",
        "7B + five 68M specialists, 24 GB",
        "emulated-7b-24g-five",
        860,  # 524 kB a token
        {drafter: {domain: (0.7,), "": (ALIEN,)} for domain, drafter in SPECIALISTS.items()},
        SPECIALISTS,
    ),
)
