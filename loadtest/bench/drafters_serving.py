"""One emulated server whose drafters differ by domain, in virtual time, asked by so many callers.

A prompt's first token says its domain to the devices and to nobody else; its other words are the domain's own and
common ones, so mixed that prompts are as much alike as the bundled ones. Tenants have nothing to do with domains.
Drafters say nothing of prompts. Every number from here is a simulation's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

import numpy as np

from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.engine import Engine
from covey.planner.build import build
from covey.planner.cost_table import load_costs
from covey.profile import SpeculationSettings, costs_file
from covey.rounds import RoundRecord
from covey.scheduler import Scheduler
from covey.types import Progress, Request, Sampling
from covey_client.costs.table import CostTable
from loadtest.bench.drafters_published import DRAFTERS, GENERAL, LENGTH, SPECIALISTS, rates
from loadtest.bench.emulated_pairs import SHAREGPT, draw_length
from loadtest.bench.emulated_serving import MODEL, PATIENCE
from loadtest.bench.statistics import geometric_mean
from loadtest.simulation.virtual import VirtualClock

COSTS = "emulated-7b-24g-five"
OFF, ORACLE = "off", "oracle"
TENANTS = 4
WORDS = 3000  # of a vocabulary, the n-th as frequent as 1/n
OWN = 0.65  # of a prompt's words are of its domain
BLOCKS, BLOCK_SIZE = 4096, 16
MAX_ROWS, TOKEN_BUDGET = 32, 2048
BEST_ARM_ROUNDS = 60  # of a request that the best-arm ratio is shown over


@dataclass(frozen=True, slots=True)
class Case:
    """What is served: by which devices, to how many callers."""

    gap: float = 1.0
    callers: int = 1
    one_device: bool = True  # drafters work one after the other; else at the same time, at no price
    telling: bool = True  # prompts tell their domain by their words
    length_policy: str = f"fixed:{LENGTH}"
    weak: int = 0  # drafters declared besides, each right half as often as the general one

    @property
    def drafters(self) -> tuple[str, ...]:
        return DRAFTERS + tuple(f"draft_weak_{number}" for number in range(self.weak))


@dataclass(slots=True)
class Served:
    """What came of it."""

    callers: int
    tokens: dict[str, int] = field(default_factory=dict)  # by domain
    seconds: dict[str, float] = field(default_factory=dict)  # from asking to the last token, summed over requests
    time: float = 0.0
    rounds: int = 0  # of rows that drafted
    emitted: int = 0  # in those
    # By how many rounds a request had had: how many then drafted, and how many with their domain's best drafter.
    asked: list[int] = field(default_factory=lambda: [0] * BEST_ARM_ROUNDS)
    best: list[int] = field(default_factory=lambda: [0] * BEST_ARM_ROUNDS)

    @property
    def speeds(self) -> dict[str, float]:
        """Tokens per second of a request, by domain."""
        return {domain: self.tokens[domain] / self.seconds[domain] for domain in sorted(self.tokens)}

    @property
    def rate(self) -> float:
        """Tokens per second: of one caller the geometric mean over domains, so that a fast one does not count for more;
        of several what all get."""
        if self.callers == 1:
            return geometric_mean(list(self.speeds.values()))
        return sum(self.tokens.values()) / self.time

    @property
    def tokens_per_round(self) -> float:
        return self.emitted / self.rounds if self.rounds else 1.0


@cache
def costs(drafters: tuple[str, ...] = DRAFTERS) -> CostTable:
    """Of the five specialists, and of other drafters that are like them."""
    table = load_costs(costs_file(COSTS))
    one = DRAFTERS[1]
    draft, switch = ({name: each.get(name, each[one]) for name in drafters} for each in (table.draft, table.switch))
    return replace(table, draft=draft, switch=switch)


@dataclass(frozen=True, slots=True)
class Asked:
    domain: str
    tenant: str
    prompt: tuple[int, ...]
    output: int


def requests(count: int, seed: int, *, telling: bool) -> list[Asked]:
    """The same for every policy. All domains in turn, in an order drawn anew each time."""
    rng = random.Random(f"{seed} drafters")
    order: list[str] = []
    while len(order) < count:
        order += rng.sample(list(SPECIALISTS), len(SPECIALISTS))
    return [
        Asked(
            domain,
            f"tenant {rng.randrange(TENANTS)}",
            tuple(prompt(domain, draw_length(SHAREGPT.prompt, SHAREGPT.prompt_spread, rng), rng, telling=telling)),
            draw_length(SHAREGPT.output, SHAREGPT.output_spread, rng),
        )
        for domain in order[:count]
    ]


def prompt(domain: str, count: int, rng: random.Random, *, telling: bool) -> Iterator[int]:
    index = list(SPECIALISTS).index(domain)
    yield MODEL.low + index
    weights = list(accumulate(1.0 / rank for rank in range(1, WORDS + 1)))
    for _ in range(count - 1):
        vocabulary = 1 + index if telling and rng.random() < OWN else 0
        yield MODEL.low + len(SPECIALISTS) + vocabulary * WORDS + rng.choices(range(WORDS), cum_weights=weights)[0]


def play(policy: str, case: Case, count: int, seed: int) -> Served:
    """Serve so many requests from a start in which nothing is learnt but what calls cost, which a server measures
    before it serves."""
    return _World(policy, case, seed).serve(requests(count, seed, telling=case.telling))


class _World:
    """Implements `covey.ports.Sink`, and owns the rest."""

    def __init__(self, policy: str, case: Case, seed: int) -> None:
        self._case, self._policy = case, policy
        self._clock = VirtualClock()
        self._served = Served(case.callers)
        self._asked: dict[int, tuple[Asked, float]] = {}
        odds = rates(costs(), case.gap)
        self._best = {domain: max(DRAFTERS, key=odds[domain].__getitem__) for domain in odds}
        self._domain, self._rounds = "", 0  # of the request that came last, and how many it has drafted in
        settings = SpeculationSettings(
            policy=OFF if policy == OFF else case.length_policy,
            drafter_policy="fixed" if policy in (OFF, ORACLE) else policy,
            max_depth=LENGTH,
            drafters=case.drafters,
        )
        table = costs(case.drafters)
        device = self._clock.worker("drafters")
        scheduler = Scheduler(
            max_running=MAX_ROWS, max_waiting=4096, token_budget=TOKEN_BUDGET, growth_tokens=64, block_size=BLOCK_SIZE
        )
        target = EmulatedTarget(table, MODEL, self._clock, blocks=BLOCKS, block_size=BLOCK_SIZE)
        self._engine = Engine(
            target,
            scheduler,
            build(settings, case.drafters, max_rows=MAX_ROWS, costs=table, seed=seed),
            self,
            self._clock,
            drafters={name: self._drafter(name, odds) for name in case.drafters},
            draft_deadline=PATIENCE,
            observe=self._observe,
            worker=(lambda _name: device) if case.one_device else self._clock.worker,
        )

    def serve(self, asked: Sequence[Asked]) -> Served:
        waiting = iter(enumerate(asked))
        while True:
            while len(self._asked) < self._case.callers and (entry := next(waiting, None)) is not None:
                self._submit(*entry)
            if not self._engine.round():
                break
        self._engine.stop()
        self._engine.run()  # returns at once, its threads ended
        self._served.time = self._clock.now()
        return self._served

    def publish(self, batch: Sequence[Progress]) -> None:
        for progress in batch:
            asked, since = self._asked[progress.key]
            tokens, seconds = self._served.tokens, self._served.seconds
            tokens[asked.domain] = tokens.get(asked.domain, 0) + len(progress.tokens)
            if progress.finish is not None:
                del self._asked[progress.key]
                seconds[asked.domain] = seconds.get(asked.domain, 0.0) + self._clock.now() - since

    def _submit(self, key: int, asked: Asked) -> None:
        self._asked[key] = asked, self._clock.now()
        self._domain, self._rounds = asked.domain, 0
        ids = np.array(asked.prompt, np.int32)
        self._engine.submit(
            Request(
                key,
                ids,
                asked.output,
                Sampling(),
                len(ids),
                tenant=asked.tenant,
                drafter=self._best[asked.domain] if self._policy == ORACLE else "",
                arrival=self._clock.now(),
            )
        )

    def _drafter(self, name: str, odds: Mapping[str, Mapping[str, float]]) -> EmulatedDrafter:
        by_subject = {
            f"@{MODEL.low + at}": (odds[domain].get(name, 0.5 * odds[domain][GENERAL]),)
            for at, domain in enumerate(SPECIALISTS)
        }
        return EmulatedDrafter(costs(self._case.drafters), MODEL, self._clock, name=name, rates=by_subject)

    def _observe(self, record: RoundRecord) -> None:
        sizes = record.sizes[: record.decoding]
        self._served.rounds += int((sizes > 0).sum())
        self._served.emitted += int((record.accepts[: record.decoding][sizes > 0] + 1).sum())
        if self._case.callers == 1 and sizes.any() and self._rounds < BEST_ARM_ROUNDS:
            self._served.asked[self._rounds] += 1
            self._served.best[self._rounds] += record.plan.drafter[0] == self._best[self._domain]
            self._rounds += 1
