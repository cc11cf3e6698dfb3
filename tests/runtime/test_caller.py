"""Messages that come twice, and callers that are not the ones that went before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.engine import Engine
from covey.planner.cost_table import CostTable
from covey.planner.static import StaticPlanner
from covey.ports import Drafter, Target
from covey.profile import DrafterSettings, TargetSettings
from covey.runtime.drafters.neural import NeuralDrafter
from covey.runtime.drafters.ngram import NgramDrafter
from covey.runtime.drafters.suffix import SuffixDrafter
from covey.runtime.emulated import EmulatedDrafter, EmulatedTarget, HashModel
from covey.runtime.target import TargetRunner
from covey.runtime.virtual import VirtualClock
from covey.scheduler import Scheduler
from covey.types import DraftWork, Finish, Open, RowStatus, Sampling, TargetReply, TargetWork, Trees
from tests.fakes import Collector, ManualClock, request
from tests.runtime import tiny_models
from tests.runtime.drafters.drafting import Sender, Text

VOCABULARY = 97
BLOCKS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("caller"), "llama")


def costs() -> CostTable:
    steps = ((1, 1, 0.001), (64, 64, 0.001))
    return CostTable("made up", "for tests", steps, (), {"draft": steps}, {"draft": steps})


def neural_target(folder: Path) -> TargetRunner:
    settings = TargetSettings(dtype="float32", threads=1, kv_blocks=BLOCKS, block_size=16)
    return TargetRunner.load(folder, settings, token_budget=64, name="target")


def emulated_target(_folder: Path) -> EmulatedTarget:
    return EmulatedTarget(costs(), HashModel(VOCABULARY), VirtualClock(), blocks=BLOCKS)


def neural(folder: Path) -> Drafter:
    drafter = NeuralDrafter.load(folder, DrafterSettings(kv_blocks=BLOCKS, block_size=16), name="draft")
    drafter.warm_up()
    return drafter


def ngram(_folder: Path) -> Drafter:
    return NgramDrafter(DrafterSettings(), name="draft", vocab_size=VOCABULARY)


def suffix(_folder: Path) -> Drafter:
    return SuffixDrafter(DrafterSettings(), name="draft", vocab_size=VOCABULARY)


def emulated(_folder: Path) -> Drafter:
    return EmulatedDrafter(costs(), HashModel(VOCABULARY), VirtualClock(), name="draft", rates={"": (1.0,)})


TARGETS = [neural_target, emulated_target]
DRAFTERS = [neural, ngram, suffix, emulated]


def held(target: Any) -> int:
    """Blocks that requests own."""
    return int(target._sequences.pool.owned if isinstance(target, TargetRunner) else target.used)


def tags(drafter: Any) -> set[int]:
    if isinstance(drafter, NeuralDrafter):
        return set(drafter._sessions.tags())
    return set(drafter._texts if isinstance(drafter, EmulatedDrafter) else drafter._tags)


def engine(target: Target, drafter: Drafter) -> tuple[Engine, Collector]:
    sink = Collector()
    scheduler = Scheduler(max_running=8, max_waiting=8, token_budget=64, growth_tokens=8, block_size=16)
    planner = StaticPlanner(2, 1)
    return Engine(target, scheduler, planner, sink, ManualClock(), drafters={"draft": drafter}, draft_deadline=60), sink


@pytest.mark.parametrize("make_target", TARGETS)
@pytest.mark.parametrize("make_drafter", DRAFTERS)
def test_an_orchestrator_that_starts_anew_finds_nothing_left_of_the_one_before(
    folder: Path, make_target: Callable[[Path], Target], make_drafter: Callable[[Path], Drafter]
) -> None:
    target, drafter = make_target(folder), make_drafter(folder)
    before, _sink = engine(target, drafter)
    for key in range(1, 5):
        before.submit(request(key, [key, 5, 6] * 9, 60))
    for _ in range(6):
        before.round()
    assert held(target) >= 4
    assert len(tags(drafter)) == 4
    after, sink = engine(target, drafter)
    after.submit(request(2, [3, 5, 6] * 9, 20, drafter="draft"))
    while after.round():
        pass
    assert tags(drafter) == {2}, "the last one's tag is freed with the next draft"
    assert sink.finish(2) is Finish.LENGTH
    assert held(target) == 0, "blocks that nobody will free"
    alone, expected = engine(make_target(folder), make_drafter(folder))
    alone.submit(request(2, [3, 5, 6] * 9, 20))
    while alone.round():
        pass
    assert sink.tokens[2] == expected.tokens[2]


def opening(tag: int, first: int) -> TargetWork:
    prompt = np.asarray([first, 5, 6], np.int32)
    three = np.asarray([3], np.int32)
    return TargetWork(
        np.asarray([tag], np.int32),
        three,
        three,
        Trees.empty(1),
        (Open(tag, prompt, 3, Sampling()),),
        sequence=1,
        origin=11,
    )


@pytest.mark.parametrize("make", TARGETS)
def test_a_pass_is_made_once_per_number_and_caller(folder: Path, make: Callable[[Path], Target]) -> None:
    target = make(folder)
    work = opening(1, 4)
    reply = target.step(work)
    assert target.step(work) is reply
    decode = replace(work, base=work.base + 1, chunk=np.ones(1, np.int32), opens=(), sequence=2)
    following: TargetReply = target.step(decode)
    assert following.status.tolist() == [RowStatus.OK]
    assert target.step(decode) is following
    other = replace(decode, origin=12)
    assert target.step(other).status.tolist() == [RowStatus.STALE], "the same number of another caller"


@pytest.mark.parametrize("make", DRAFTERS)
def test_a_draft_is_made_once_per_number_and_caller(folder: Path, make: Callable[[Path], Drafter]) -> None:
    drafter = make(folder)
    sender = Sender(drafter)
    work: DraftWork = sender.work([Text(1, [5, 6, 7, 5, 6])], 2)
    reply = drafter.draft(work)
    assert drafter.draft(work) is reply, "before it knows the drafter's epoch, too"
    other = replace(work, opens=(), origin=work.origin + 1)
    assert drafter.draft(other).status.tolist() == [RowStatus.STALE]
    assert not tags(drafter)
