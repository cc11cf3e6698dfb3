"""An engine whose requests' own texts offer drafts, over a target that repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from covey.contracts.profile import DrafterSettings, SpeculationSettings
from covey.contracts.types import LOOKUP, Open, TargetReply, TargetWork
from covey.drafters.companion import LookedUp
from covey.drafters.hit_rates import HitRates
from covey.drafters.suffix import SuffixDrafter
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.process.guard import Guard
from covey.process.worker import Thread
from covey.requests.scheduler import Scheduler
from tests import fakes
from tests.engines import LIMITS
from tests.fakes import Collector, HashTarget, ManualClock, request
from tests.loop.hash_drafters import HashDrafter

PERIOD, HASHED = 9, fakes.next_token


def repeating(tokens: Sequence[int]) -> int:
    """Text goes on as it did a period ago, but for a new token now and then."""
    return tokens[-PERIOD] if len(tokens) % 23 and len(tokens) >= PERIOD else 1 + len(tokens) % 90


class Slow(HashTarget):
    """Takes as long for a token as for twenty."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def step(self, work: TargetWork) -> TargetReply:
        self._clock.sleep(0.01 + 0.0001 * (int(work.chunk.sum()) + len(work.trees.tokens)))
        return super().step(work)


class Ending(LookedUp):
    ended = False

    def end(self) -> None:
        self.ended = True
        super().end()


class Served:
    """Some requests, one after the other or together, with a suffix lookup beside drafters that are never right."""

    def __init__(self, *, lookup: bool = True, guard: Guard | None = None, budget: int = 64) -> None:
        self.clock, self.sink = ManualClock(), Collector()
        self.target, rates = Slow(self.clock), HitRates()
        drafter = SuffixDrafter(DrafterSettings(), name="suffix", vocab_size=0)
        self.begun = list[Ending]()

        def companion(opening: Open) -> LookedUp:
            self.begun.append(Ending(drafter, opening, rates))
            return self.begun[-1]

        self.worker = Thread("lookup")
        drafters = {"one": HashDrafter(0.0), "two": HashDrafter(0.0)}
        config = EngineConfig(drafters, companion if lookup else None, draft_deadline=60.0)
        hooks = EngineHooks(worker=lambda _: self.worker, guard=guard or Guard(strict=True))
        scheduler = Scheduler(**LIMITS | {"token_budget": budget})
        planner = build(SpeculationSettings(drafter_policy="fixed"), tuple(drafters), max_rows=8)
        self.engine = Engine(self.target, scheduler, planner, self.sink, self.clock, config, hooks)
        self._key = 0

    def serve(self, count: int, tokens: int = 120, **settings: object) -> list[int]:
        """Serve so many requests together; returns their keys."""
        keys = range(self._key + 1, self._key + 1 + count)
        self._key += count
        for key in keys:
            self.engine.submit(request(key, [key, 5, 9], tokens, **settings))
        while self.engine.round():
            self.worker.submit(lambda _: None, None).result(60.0)  # every prompt is read
        for key in keys:
            assert self.sink.tokens[key] == fakes.continuation([key, 5, 9], tokens), "lookups changed the text"
        assert self.target.used == 0
        return list(keys)

    def looked_up(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Tokens of each request that were looked up, and how many of them were accepted."""
        named = [{name: counts for name, *counts in self.sink.ended[key].drafters} for key in keys]
        return [tuple(each.get(LOOKUP, (0, 0))) for each in named]  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "next_token", repeating)


@pytest.mark.parametrize("together", [1, 3, 8])
def test_a_text_that_repeats_itself_takes_fewer_rounds(together: int) -> None:
    plain, served = Served(lookup=False), Served()
    for one in (plain, served):
        for _ in range(3):
            one.serve(together)
    assert served.clock.now() < 0.7 * plain.clock.now()
    drafted, accepted = np.sum(served.looked_up(range(1, 3 * together + 1)), axis=0)
    assert accepted > 0.6 * drafted > 0


def test_requests_that_say_who_drafts_or_how_deep_are_not_offered_anything() -> None:
    served = Served()
    served.serve(2)
    for settings in ({"drafter": "one"}, {"speculation": "off"}, {"speculation": "fixed:2"}):
        begun = len(served.begun)
        assert served.looked_up(served.serve(2, **settings)) == [(0, 0)] * 2
        assert len(served.begun) == begun


def test_offers_stay_within_the_budget_of_a_pass_and_the_room_of_a_request() -> None:
    served = Served(budget=32)
    for _ in range(3):
        served.serve(8)
    assert max(int(work.chunk.sum()) + len(work.trees.tokens) for work in served.target.works) == 32
    for work in served.target.works:
        assert (work.trees.sizes < np.maximum(1, work.room)).all()


def test_what_fails_is_set_aside_and_its_last_offers_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(guard=Guard())
    served.serve(2)
    monkeypatch.setattr(LookedUp, "read", lambda *_: 1 / 0)
    assert served.looked_up(served.serve(2)) == [(0, 0)] * 2
    assert served.looked_up(served.serve(2)) == [(0, 0)] * 2


def test_requests_that_end_leave_nothing() -> None:
    served = Served()
    served.serve(2)
    for key in range(11, 15):
        served.engine.submit(request(key, [key, 5, 9], 50))
    for _ in range(10):
        served.engine.round()
        served.worker.submit(lambda _: None, None).result(60.0)
    running = list(served.engine.scheduler.running.values())
    for key in range(11, 15):
        served.engine.cancel(key)
    while served.engine.round():
        pass
    assert len(running) == 4
    assert [(active.text, active.offer) for active in running] == [(None, None)] * 4
    assert len(served.begun) == 6
    assert all(text.ended for text in served.begun)
    assert [text.lookup.tokens[3:] for text in served.begun[:2]] == [served.sink.tokens[key] for key in (1, 2)]
    assert [text.lookup.tokens[3:] for text in served.begun[2:]] == [active.output for active in running]
