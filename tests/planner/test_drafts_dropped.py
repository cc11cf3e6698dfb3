"""Where a selector drops drafts, what is expected of a depth is what comes of those that are verified."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import TargetReply, TargetWork
from covey.loop.configuration import EngineHooks
from covey.planner.build import build
from loadtest.simulation.virtual import VirtualClock
from tests.engines import engine_to, finish
from tests.fakes import VOCAB, Collector, HashTarget, next_token, request
from tests.loop.hash_drafters import TextDrafter

DEPTH, ROWS, TOKENS = 4, 8, 250
SURE, UNSURE = 0.95, 0.1  # how often its drafts are right, as it says itself: half of them the one, half the other


class HalfSure(TextDrafter):
    def guess(self, text: list[int], place: int) -> tuple[int, float]:  # noqa: ARG002
        luck = hashlib.blake2b(np.asarray([*text[-12:], len(text)], np.int32).tobytes(), digest_size=8).digest()
        chance = SURE if luck[0] < 128 else UNSURE
        token = next_token(text)
        return (token if int.from_bytes(luck[1:5], "little") < chance * 2**32 else (token + 1) % VOCAB), chance


class Timed(HashTarget):
    """A pass takes 10 ms, and one for each token."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(blocks=8000)
        self.clock = clock

    def step(self, work: TargetWork) -> TargetReply:
        self.clock.sleep(0.010 + 0.001 * (int(work.chunk.sum()) + len(work.trees.tokens)))
        return super().step(work)


def speed(policy: str, step: float) -> float:
    """Return the tokens per second where a step of a draft takes `step`."""
    clock, sink = VirtualClock(), Collector()
    settings = SpeculationSettings(policy=policy, selection="worth", drafters=("a",), max_depth=DEPTH)
    drafters, hooks = {"a": HalfSure(clock=clock, step=step)}, EngineHooks(worker=clock.worker)
    planner, limits = build(settings, ("a",), max_rows=16), {"max_running": 16, "token_budget": 256}
    engine = engine_to(sink, Timed(clock), planner, drafters, clock=clock, hooks=hooks, deadline=0.5, **limits)
    finish(engine, (request(key, [key, 5, 7], TOKENS) for key in range(ROWS)))
    return sum(map(len, sink.tokens.values())) / clock.now()


@pytest.mark.parametrize(("step", "best"), [(0.001, "fixed:2"), (0.005, "off")])
def test_no_depth_is_chosen_for_drafts_that_are_not_verified(step: float, best: str) -> None:
    """Of drafts that are verified nearly all are right: counted alone they would make the greatest depth look best."""
    assert speed("adaptive", step) > 0.94 * speed(best, step)
