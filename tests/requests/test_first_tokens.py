"""A tenant with few requests waits for its first token no longer than it must, and the others go on meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest

from covey.contracts.types import Sampling, TargetReply, TargetWork
from tests.engines import engine_to, finish
from tests.fakes import Collector, HashTarget, ManualClock, request

CROWD, NEWCOMER = range(1, 33), 100


class Timed(HashTarget):
    """A target whose passes take `each` seconds for a token, and `always`."""

    def __init__(self, clock: ManualClock, each: float, always: float) -> None:
        super().__init__(blocks=4000)
        self.clock, self.each, self.always = clock, each, always

    def step(self, work: TargetWork) -> TargetReply:
        self.clock.sleep(self.always + self.each * int(work.chunk.sum()))
        return super().step(work)


def rounds(each: float, always: float, prompt: int = 5, *, crowd: str = "crowd") -> list[TargetWork]:
    """Return the two passes after a newcomer joined a crowd of one tenant. Before the crowd came, a request ran
    alone."""
    clock = ManualClock()
    target, sink = Timed(clock, each, always), Collector()
    engine = engine_to(sink, target, clock=clock, max_running=64, token_budget=256)
    finish(engine, [request(0, [7], 8)])
    for key in CROWD:
        engine.submit(request(key, [key, 1], 200, tenant=crowd.format(key)))
    for _ in range(70):
        engine.round()
    engine.submit(request(NEWCOMER, list(range(prompt)), 200, tenant="newcomer"))
    before = len(target.works)
    finish(engine)
    assert {len(tokens) for key, tokens in sink.tokens.items() if key} == {200}
    return target.works[before : before + 2]


def test_where_the_others_would_make_the_pass_long_a_first_token_has_a_pass_of_its_own() -> None:
    alone, together = rounds(each=0.001, always=0.001)
    assert alone.tags.tolist() == [NEWCOMER]
    assert sorted(together.tags.tolist()) == [*CROWD, NEWCOMER], "the next pass is of all"


@pytest.mark.parametrize(
    "given",
    [
        {"each": 0.00001, "always": 0.01},  # a GPU: a row more or less changes nothing
        {"each": 0.001, "always": 0.001, "prompt": 64},  # its own tokens take longer than theirs
        {"each": 0.001, "always": 0.001, "crowd": "newcomer"},  # they are its own
        {"each": 0.001, "always": 0.001, "crowd": "{}"},  # nobody has more than it has
    ],
    ids=["short passes", "a long prompt", "one tenant", "equal tenants"],
)
def test_where_that_gains_little_all_go_together(given: dict[str, float]) -> None:
    assert all(len(work.tags) == len(CROWD) + 1 for work in rounds(**given))  # type: ignore[arg-type]


def test_newcomers_without_end_leave_the_others_every_second_pass() -> None:
    clock = ManualClock()
    target, sink = Timed(clock, 0.001, 0.001), Collector()
    engine = engine_to(sink, target, clock=clock, max_running=64, token_budget=256)
    finish(engine, [request(0, [7], 8)])
    for key in CROWD:
        engine.submit(request(key, [key, 1], 60, tenant="crowd"))
    for number in range(200):
        engine.submit(request(NEWCOMER + number, [number], 1, tenant="newcomer"))
        engine.round()
    whole = [len(CROWD) <= len(work.tags) for work in target.works[20:100]]
    assert any(not each for each in whole)
    assert all(one or two for one, two in pairwise(whole))


@pytest.mark.parametrize(("each", "most"), [(0.001, 32), (0.0, 128)], ids=["a CPU", "a GPU"])
def test_where_passes_are_long_few_tokens_of_a_prompt_are_scored_in_one(each: float, most: int) -> None:
    clock = ManualClock()
    target = Timed(clock, each, 0.001)
    engine = engine_to(Collector(), target, clock=clock, max_running=64, token_budget=256)
    finish(engine, [request(0, [7], 8)])
    scored = request(1, [token % 90 for token in range(2000)], 1, sampling=Sampling(prompt_logprobs=True))
    before = len(target.works)
    finish(engine, [scored])
    sizes = [int(work.chunk.sum()) for work in target.works[before:]]
    assert max(sizes[4:-1]) == most
