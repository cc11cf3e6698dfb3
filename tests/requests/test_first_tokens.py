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


class Served:
    """A crowd of one tenant, before which a request ran alone."""

    def __init__(self, each: float, always: float, *, crowd: str = "crowd", tokens: int = 200) -> None:
        self.sink, clock = Collector(), ManualClock()
        self.target = Timed(clock, each, always)
        self.engine = engine_to(self.sink, self.target, clock=clock, max_running=64, token_budget=256)
        finish(self.engine, [request(0, [7], 8)])
        for key in CROWD:
            self.engine.submit(request(key, [key, 1], tokens, tenant=crowd.format(key)))


def rounds(each: float, always: float, prompt: int = 5, *, crowd: str = "crowd") -> list[TargetWork]:
    """Return the two passes after a newcomer joined a crowd."""
    served = Served(each, always, crowd=crowd)
    for _ in range(70):
        served.engine.round()
    before = len(served.target.works)
    finish(served.engine, [request(NEWCOMER, list(range(prompt)), 200, tenant="newcomer")])
    assert {len(tokens) for key, tokens in served.sink.tokens.items() if key} == {200}
    return served.target.works[before : before + 2]


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
    served = Served(0.001, 0.001, tokens=60)
    for number in range(200):
        served.engine.submit(request(NEWCOMER + number, [number], 1, tenant="newcomer"))
        served.engine.round()
    whole = [len(CROWD) <= len(work.tags) for work in served.target.works[20:100]]
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
