"""Where a selector drops drafts, what is expected of a depth is what comes of those that are verified."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, RowStatus, TargetReply, TargetWork, Trees
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.planner.round_planner import RoundPlanner
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import Scheduler
from loadtest.simulation.virtual import VirtualClock
from tests.fakes import VOCAB, Collector, HashTarget, next_token, request

DEPTH, ROWS, TOKENS = 4, 8, 250
SURE, UNSURE = 0.95, 0.1  # how often its drafts are right, as it says itself: half of them the one, half the other


class HalfSure:
    """Implements `covey.contracts.ports.Drafter`."""

    def __init__(self, clock: VirtualClock, step: float) -> None:
        self.clock, self.step = clock, step
        self.tokens: dict[int, list[int]] = {}

    def info(self) -> DrafterInfo:
        return DrafterInfo("half", VOCAB, 1 << 20, 7, 0)

    def draft(self, work: DraftWork) -> DraftReply:
        for tag in work.frees:
            self.tokens.pop(tag, None)
        for opening in work.opens:
            self.tokens[opening.tag] = opening.tokens.tolist()
        chains, scores, seen = [], list[float](), []
        for row, tag in enumerate(work.tags.tolist()):
            text = self.tokens[tag]
            text[:] = text[: work.keep[row]] + work.tokens[work.offsets[row] : work.offsets[row + 1]].tolist()
            seen.append(len(text))
            chain, path = list[int](), 0.0
            for _ in range(work.depth[row]):
                token, chance = self.next(text + chain)
                chain.append(token)
                path += math.log(chance)
                scores.append(path)
            chains.append(chain)
        seconds = self.step * max(map(len, chains))
        self.clock.sleep(seconds)
        offsets = np.cumsum([0, *map(len, chains)]).astype(np.int32)
        parents = [at - 1 for chain in chains for at in range(len(chain))]
        flat = np.asarray([token for chain in chains for token in chain], np.int32)
        trees = Trees(offsets, flat, np.asarray(parents, np.int32), np.asarray(scores, np.float32))
        none = np.zeros(len(chains), np.int32)
        return DraftReply(none + RowStatus.OK, np.asarray(seen, np.int32), trees, 7, 0.0, seconds)

    @staticmethod
    def next(text: list[int]) -> tuple[int, float]:
        luck = hashlib.blake2b(np.asarray([*text[-12:], len(text)], np.int32).tobytes(), digest_size=8).digest()
        chance = SURE if luck[0] < 128 else UNSURE
        token = next_token(text)
        return (token if int.from_bytes(luck[1:5], "little") < chance * 2**32 else (token + 1) % VOCAB), chance


def served(policy: str, selection: str, step: float) -> tuple[float, RoundPlanner, list[RoundRecord]]:
    """Tokens per second where a pass takes 10 ms and one for each token, and a step of a draft takes `step`."""
    clock, sink, target, records = VirtualClock(), Collector(), HashTarget(blocks=8000), list[RoundRecord]()
    settings = SpeculationSettings(policy=policy, selection=selection, drafters=("a",), max_depth=DEPTH)
    planner = build(settings, ("a",), max_rows=16)
    passed = target.step

    def timed(work: TargetWork) -> TargetReply:
        clock.sleep(0.010 + 0.001 * (int(work.chunk.sum()) + len(work.trees.tokens)))
        return passed(work)

    target.step = timed  # type: ignore[method-assign]
    engine = Engine(
        target,
        Scheduler(max_running=16, max_waiting=16, token_budget=256, growth_tokens=8, block_size=4),
        planner,
        sink,
        clock,
        EngineConfig({"a": HalfSure(clock, step)}),
        EngineHooks(observe=records.append, worker=clock.worker),
    )
    for key in range(ROWS):
        engine.submit(request(key, [key, 5, 7], TOKENS))
    while engine.round():
        pass
    return sum(record.emitted for record in records) / clock.now(), planner, records


@pytest.mark.parametrize(("step", "best"), [(0.001, "fixed:2"), (0.005, "off")])
def test_no_depth_is_chosen_for_drafts_that_are_not_verified(step: float, best: str) -> None:
    """Of drafts that are verified nearly all are right: counted alone they would make the greatest depth look best."""
    chosen = served("adaptive", "worth", step)[0]
    assert chosen > 0.94 * served(best, "worth", step)[0]
