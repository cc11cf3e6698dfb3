"""Tenants' shares of the server: who is admitted, who gives way, whose queue is cut."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from covey.contracts.errors import Overloaded
from covey.contracts.tenants import TenantRules
from covey.contracts.types import Finish, Objective, Offer, Request, Sampling
from covey.loop.engine import Engine
from covey.requests.scheduler import Scheduler
from tests.engines import finish
from tests.fakes import Collector, HashTarget, ManualClock, continuation, request
from tests.static_planner import StaticPlanner


def scheduler(rules: TenantRules | None = None, **settings: Any) -> Scheduler:
    usual: dict[str, Any] = {"max_running": 8, "max_waiting": 512, "token_budget": 64, "growth_tokens": 0}
    return Scheduler(**usual | settings, block_size=4, tenants=rules)


def asks(key: int, tenant: str, tokens: int = 30, **settings: Any) -> Request:
    return request(key, [1, 2], tokens, tenant=tenant, **settings)


def engine(made: Scheduler, blocks: int = 4096) -> tuple[Engine, Collector]:
    sink = Collector()
    return Engine(HashTarget(blocks=blocks), made, StaticPlanner(), sink, ManualClock()), sink


def tenants(made: Scheduler) -> Counter[str]:
    return Counter(active.request.tenant for active in made.running.values())


def served(made: Scheduler, rounds: int) -> Counter[str]:
    """Admissions of each tenant while requests end one a round, each replaced by its tenant's next."""
    found: Counter[str] = Counter()
    key = 1000
    for _ in range(rounds):
        before = set(made.running)
        made.admit(4096, 0.0)
        found.update(made.running[key].request.tenant for key in made.running if key not in before)
        gone = next(iter(made.running.values()))
        gone.output = [0] * gone.request.max_tokens
        made.finish(gone)
        key += 1
        made.submit(asks(key, gone.request.tenant), 0.0)
    return found


def test_large_grammars_begin_one_a_pass_and_small_ones_together() -> None:
    """Each is opened by the target within the pass that everybody waits for."""
    made = scheduler()
    for key, size in enumerate([5000, 5000, 100_000, 10, 10, 0]):
        made.submit(asks(key, "a", sampling=Sampling(grammar="g" * size)), 0.0)
    opened = []
    for _ in range(4):
        batch = made.admit(4096, 0.0)
        opened.append([opening.tag for opening in batch.opens])
        for active in batch.rows:
            active.opened = True
    assert opened == [[0, 3, 4, 5], [1], [2], []]


@pytest.mark.parametrize(("weights", "share"), [({}, 0.5), ({"b": 3.0}, 0.75), ({"*": 2.0, "a": 1.0}, 2 / 3)])
def test_what_each_is_served_goes_by_weight_however_many_it_asks(weights: dict[str, float], share: float) -> None:
    made = scheduler(TenantRules(weights), max_running=1)
    for key in range(400):
        made.submit(asks(key, "a" if key < 350 else "b"), 0.0)
    counts = served(made, 400)
    assert counts["b"] / counts.total() == pytest.approx(share, abs=0.12), "QUANTUM may separate them by 32 requests"


def test_a_newcomer_takes_a_place_that_another_has_beyond_its_share() -> None:
    made = scheduler()
    for key in range(100):
        made.submit(asks(key, "flood", 500), float(key))
    made.admit(4096, 100.0)
    assert list(made.running) == list(range(8)), "a tenant alone has every place"
    for active in made.running.values():
        active.own_drafts = Offer(active.num_tokens, [5, 6], [])
    made.submit(asks(200, "victim"), 101.0)
    made.admit(4096, 101.0)
    assert 200 in made.running
    assert made.preemptions == 1
    assert len(made.running) == 8
    (gone,) = (active for active in made.waiting if active.key == 7)
    assert gone.next_drafts == [], "the least urgent of the others gave way, and the target has forgotten its drafts"
    assert gone.seen_by_own_head == 0
    for key in range(201, 210):
        made.submit(asks(key, "victim"), 102.0)
    made.admit(4096, 102.0)
    assert tenants(made) == {"flood": 6, "victim": 2}, "one a pass: what gives way must be computed again"
    for _ in range(8):
        made.admit(4096, 103.0)
    assert tenants(made) == {"flood": 4, "victim": 4}, "and nobody gives way of its own share"
    assert made.preemptions == 4


def test_who_holds_all_blocks_gives_way_too() -> None:
    made, target_blocks = scheduler(max_running=64, growth_tokens=64), 64
    run, sink = engine(made, target_blocks)
    for key in range(40):
        run.submit(asks(key, "flood", 60))
    for _ in range(8):
        run.round()
    assert 2 <= len(made.running) < 40, "the test is meant to run out of blocks"
    run.submit(asks(99, "victim", 4))
    for _ in range(8):
        run.round()
    assert sink.finish(99) is Finish.LENGTH
    finish(run)
    for key in range(40):
        assert sink.tokens[key] == continuation([1, 2], 60)


@pytest.mark.parametrize("seed", range(6))
def test_any_tenants_prompts_and_objectives_in_a_tiny_pool_get_their_own_tokens(seed: int) -> None:
    rng, target, sink, clock = random.Random(seed), HashTarget(blocks=24), Collector(), ManualClock()
    made = scheduler(
        TenantRules({"a": 3.0}, max_running=rng.choice([0, 2])), max_running=5, growth_tokens=4, token_budget=24
    )
    run, asked = Engine(target, made, StaticPlanner(), sink, clock), list[Request]()
    for key in range(60):
        prompt = [rng.randrange(90) for _ in range(rng.randrange(1, 30))]
        settings = {"tenant": rng.choice("abcd"), "priority": rng.randrange(3)}
        objective = Objective("x", rng.choice([0.05, 1.0, math.inf]), rng.choice([0.01, 0.1, math.inf]))
        wanted = request(key, prompt, rng.randrange(1, 40), objective=objective, **settings)
        asked.append(replace(wanted, arrival=clock.time))
        run.submit(asked[-1])
        for _ in range(rng.randrange(4)):
            clock.time += 0.05
            run.round()
    for _ in range(5000):
        clock.time += 0.05
        if not run.round():
            break
    assert made.idle
    assert made.preemptions > 0, "the test is meant to exhaust the pool"
    assert target.used == 0
    assert sink.tokens == {each.key: continuation(each.prompt.tolist(), each.max_tokens) for each in asked}
    assert not made.shares.waiting
    assert not made.shares.running
    assert not made.shares.several(), "nothing is kept of tenants that are gone"


def test_limits_of_a_tenant() -> None:
    made = scheduler(TenantRules(max_running=3, max_waiting=5))
    run, _ = engine(made)
    for key in range(5):
        run.submit(asks(key, "a"))
    with pytest.raises(Overloaded, match=r"queue full: 5 requests of this tenant are waiting; try again in \d+ s"):
        run.submit(asks(5, "a"))
    run.submit(asks(6, "b"))
    run.round()
    assert tenants(made) == {"a": 3, "b": 1}


def test_a_full_queue_has_room_for_who_has_little_in_it() -> None:
    made = scheduler(max_running=1, max_waiting=6)
    run, sink = engine(made)
    for key in range(6):
        run.submit(asks(key, "flood", priority=-key))
    run.round()
    run.submit(asks(6, "flood", priority=-6))
    run.round()
    with pytest.raises(Overloaded, match="6 requests are waiting"):
        run.submit(asks(7, "flood"))
    run.submit(asks(8, "victim", 3))
    run.round()
    assert sink.finish(6) is Finish.ERROR
    assert len(made.waiting) <= 6
    finish(run)
    assert sink.tokens[8] == continuation([1, 2], 3)
    assert all(sink.finish(key) is Finish.LENGTH for key in range(6))
