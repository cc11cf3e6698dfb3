"""Who drafts: a choice for each request, in a world with domains."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import DraftReply, DraftWork, RowStatus, TargetReply, TargetWork, Trees
from covey.loop.configuration import EngineHooks
from covey.planner.build import build
from covey.planner.round_planner import RoundPlanner
from covey.requests.rounds import Plan, RoundRecord
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock
from tests.engines import engine_to, finish
from tests.fakes import VOCAB, Collector, HashTarget, continuation, next_token, request
from tests.loop.hash_drafters import TextDrafter

DOMAINS = ("code", "math", "chat", "prose")
DEPTH = 4


def domain_of(tokens: Sequence[int]) -> int:
    return tokens[0] % len(DOMAINS)


def prompt(domain: int, key: int, length: int = 24) -> list[int]:
    """Prompts of a domain have words of their own."""
    rng = random.Random(key)
    return [domain, *(domain + len(DOMAINS) * rng.randrange(6) for _ in range(length - 1))]


class Specialist(TextDrafter):
    """Right with a probability that depends on the domain of the text."""

    def __init__(self, name: str, rates: Sequence[float], clock: VirtualClock, *, step: float = 0.001) -> None:
        super().__init__(name, clock=clock, step=step)
        self.rates = rates

    def guess(self, text: list[int], place: int) -> tuple[int, float]:  # noqa: ARG002
        luck = hashlib.blake2b(np.asarray([*text, len(text)], np.int32).tobytes(), key=self.name.encode()).digest()
        right = int.from_bytes(luck[:4], "little") / (1 << 32) < self.rates[domain_of(text)]
        token = next_token(text)
        return (token if right else (token + 1) % VOCAB), 1.0


class World:
    """A server with a specialist for each domain and one that knows a little of all."""

    def __init__(
        self,
        policy: str,
        *,
        length: str = "fixed:4",
        good: float = 0.9,
        bad: float = 0.3,
        general: float = 0.7,
        step: float = 0.001,
    ) -> None:
        self.clock, self.sink, self.target = VirtualClock(), Collector(), HashTarget(blocks=4000)
        rates = {"general": [general] * len(DOMAINS)}
        rates |= {name: [good if at == own else bad for at in range(len(DOMAINS))] for own, name in enumerate(DOMAINS)}
        self.drafters = {name: Specialist(name, each, self.clock, step=step) for name, each in rates.items()}
        settings = SpeculationSettings(policy=length, drafter_policy=policy, max_depth=DEPTH, drafters=tuple(rates))
        verify = tuple((rows, tokens, 0.01 + 0.0001 * tokens) for rows in (1, 32) for tokens in (rows, rows * 5))
        draft = tuple((rows, count, step * count) for rows in (1, 32) for count in (1, DEPTH))
        costs = CostTable("made up", "for tests", verify, (), dict.fromkeys(rates, draft), {})
        self.planner: RoundPlanner = build(settings, tuple(rates), costs=costs, max_rows=32)
        self.records: list[RoundRecord] = []
        hooks = EngineHooks(observe=self.records.append, worker=self.clock.worker)
        limits = {"max_running": 32, "max_waiting": 4096, "token_budget": 512}
        ports = self.sink, self.target, self.planner, self.drafters
        self.engine = engine_to(*ports, clock=self.clock, hooks=hooks, deadline=0.5, **limits)
        step_of = self.target.step
        self.target.step = lambda work: (self.clock.sleep(0.01), step_of(work))[1]  # type: ignore[method-assign]

    def serve(
        self, domains: Iterable[int], *, together: int = 1, count: int = 60, first: int = 0, **given: object
    ) -> None:
        waiting = list(enumerate(domains, first))
        while waiting:
            now, waiting = waiting[:together], waiting[together:]
            finish(self.engine, (request(key, prompt(domain, key), count, **given) for key, domain in now))
            for key, domain in now:
                assert self.sink.tokens[key] == continuation(prompt(domain, key), count)

    def rounds(self) -> Counter[str]:
        return Counter(name for record in self.records for name in record.plan.drafter if name)

    def limit(self, longest: int, *names: str) -> None:
        """Have these drafters, or all, hold texts of at most so many tokens."""
        for name in names or self.drafters:
            self.engine.roster.came(name, replace(self.drafters[name].info(), max_positions=longest))

    def longest(self, name: str) -> int:
        """Return the longest text, drafts included, that the drafter was asked for."""
        works = self.drafters[name].works
        return max(int((work.keep + np.diff(work.offsets) + work.depth).max()) for work in works)


def test_a_drafter_that_fails_is_not_chosen_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("ucb-be")
    world.serve([1] * 6)
    meanwhile, gone, begun = world.planner.meanwhile, list[int](), len(world.records)

    planned, plan = list[Plan](), world.planner.plan

    def noted(*given: Any) -> Plan:
        planned.append(plan(*given))
        return planned[-1]

    def leaving() -> None:
        meanwhile()
        if len(world.records) == begun + 8:
            gone.append(len(world.records))
            world.engine.roster.failed(planned[-1].drafter[0])

    monkeypatch.setattr(world.planner, "plan", noted)
    monkeypatch.setattr(world.planner, "meanwhile", leaving)
    world.serve([1], first=6)
    last, after = (record.plan for record in world.records[gone[0] : gone[0] + 2])
    assert after.drafter[0] != last.drafter[0]
    assert after.depth.all()


def test_a_request_that_names_its_drafter_has_it_and_one_that_wants_no_drafts_asks_none() -> None:
    world = World("ucb-be")
    world.serve([1] * 4, together=4, speculation="off")
    assert not any(drafter.works for drafter in world.drafters.values())
    world.serve([0, 1], together=2, first=4, drafter="math")
    assert {name for name, drafter in world.drafters.items() if drafter.works} == {"math"}
    assert {why for record in world.records for why in record.plan.why} == {"asked"}


def test_a_text_that_a_drafter_cannot_hold_is_drafted_by_others() -> None:
    world = World("ucb-be")
    world.limit(60, "math")
    world.serve([1] * 8, count=120)
    assert world.longest("math") <= 60
    late = [record for record in world.records if record.plan.depth.any()][-200:]
    assert {name for record in late for name in record.plan.drafter} > {"math"}, "others draft then"


def test_rows_that_their_drafter_cannot_hold_are_asked_nothing_and_teach_nothing() -> None:
    """What they are short of is no fault of its drafts."""
    world = World("fixed:general")
    world.limit(40)
    world.serve([0], count=60)
    depths = [record.plan.depth[0] for record in world.records if record.decoding]
    assert max(depths) == DEPTH
    assert not any(depths[-20:])
    assert world.longest("general") == 40


def test_a_bandit_knows_of_its_last_round_when_it_chooses() -> None:
    """The policy of lengths is patient here, and told of a round while the next one drafts."""
    world = World("ucb-be")
    world.serve([2])
    played = [record.plan.drafter[0] for record in world.records if record.plan.depth.any()]
    assert played[:6] == [*world.drafters, "chat"], "each arm once, then the best"


@pytest.mark.parametrize(("policy", "wanted"), [("ucb-bd", True), ("sh", True), ("ucb-be", False)])
def test_block_divergence_is_asked_for_where_a_policy_learns_from_it(policy: str, wanted: bool) -> None:
    world = World(policy)
    asked, shipped = set(), set()
    step, drafter = world.target.step, world.drafters["general"]
    draft = drafter.draft
    world.target.step = lambda work: (asked.add(work.divergence), step(work))[1]  # type: ignore[method-assign]
    drafter.draft = lambda work: (shipped.add(work.q_rows), draft(work))[1]  # type: ignore[method-assign]
    world.serve([0, 1, 2])
    assert wanted in asked
    assert shipped <= {wanted}
    assert not wanted or shipped


@pytest.mark.parametrize("policy", ["ucb-bd", "d-ucb", "sw-ucb", "sh", "petc", "exp3"])
def test_an_arm_that_proposes_nothing_is_left(policy: str) -> None:
    """The first arm is silent. A bandit that learnt nothing of that would call it untried, and play it for ever."""
    world = World(policy)
    silent, step = world.drafters["general"], world.target.step
    answer = silent.draft
    silent.draft = lambda work: replace(answer(work), trees=Trees.empty(len(work.tags)))  # type: ignore[method-assign]

    def judged(work: TargetWork) -> TargetReply:
        drafted = work.trees.sizes > 0
        return replace(step(work), divergence=np.where(drafted, 0.6, -1.0).astype(np.float32))

    world.target.step = judged  # type: ignore[method-assign]
    world.serve([0, 1, 2] * 4)
    rounds = world.rounds()
    assert rounds["general"] < 0.5 * rounds.total() if policy == "exp3" else rounds["general"] < 0.2 * rounds.total()


def test_a_drafter_that_is_still_reading_a_long_prompt_is_not_blamed_for_it() -> None:
    world = World("ucb-be", good=0.7, bad=0.7, general=0.7)
    for drafter in world.drafters.values():
        drafter.draft = reading_first(drafter.draft, 8)  # type: ignore[method-assign]
    world.serve([0])
    asked = [record.plan.drafter[0] for record in world.records if record.plan.depth.any()]
    assert len(set(asked[:8])) == 1, "another one would have to read it, too"
    assert any(record.accepted for record in world.records)


def reading_first(draft: Callable[[DraftWork], DraftReply], rounds: int) -> Callable[[DraftWork], DraftReply]:
    """Has no time left for proposals in its first rounds."""
    left = rounds

    def answer(work: DraftWork) -> DraftReply:
        nonlocal left
        reply = draft(work)
        if not left:
            return reply
        left -= 1
        rows = len(work.tags)
        status = np.full(rows, RowStatus.SKIPPED, np.int32)
        return replace(reply, status=status, trees=Trees.empty(rows), catch_up_seconds=0.05, draft_seconds=0.0)

    return answer
