"""Messages that come twice, callers that are not the ones that went before, and callers that share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.contracts.ports import Drafter, Target
from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.contracts.types import (
    NO_INTS,
    DraftReply,
    DraftWork,
    Finish,
    Open,
    RowStatus,
    Sampling,
    TargetReply,
    TargetWork,
    Trees,
)
from covey.drafters.neural import NeuralDrafter
from covey.drafters.suffix import SuffixDrafter
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.hash_model import HashModel
from covey.loop.engine import Engine
from covey.target.runner import TargetRunner
from covey.wire.ledger import INCARNATION_BITS, Ledger, new_origin
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock
from tests.drafters.drafting import Sender, Text, rows_of
from tests.engines import engine_to, finish
from tests.fakes import Collector, ManualClock, request
from tests.models import tiny_models
from tests.static_planner import StaticPlanner

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
    drafter = NeuralDrafter.load(folder, DrafterSettings(kv_blocks=BLOCKS), name="draft")
    drafter.warm_up()
    return drafter


def suffix(_folder: Path) -> Drafter:
    return SuffixDrafter(DrafterSettings(), name="draft", vocab_size=VOCABULARY)


def emulated(_folder: Path) -> Drafter:
    return EmulatedDrafter(costs(), HashModel(VOCABULARY), VirtualClock(), name="draft", rates={"": (1.0,)})


TARGETS = [neural_target, emulated_target]
DRAFTERS = [neural, suffix, emulated]  # other lookups are as the suffixes


def held(target: Any) -> int:
    """Blocks that requests own."""
    return int(target._sequences.pool.owned if isinstance(target, TargetRunner) else target.used)


def tags(drafter: Any) -> set[int]:
    return {tag for _origin, tag in drafter._ledger.tags()}


def engine(target: Target, drafter: Drafter) -> tuple[Engine, Collector]:
    sink = Collector()
    return engine_to(sink, target, StaticPlanner(2, 1), {"draft": drafter}, clock=ManualClock(), block_size=16), sink


@pytest.mark.parametrize(("make_target", "make_drafter"), list(zip([*TARGETS, emulated_target], DRAFTERS)))
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
    finish(after)
    assert tags(drafter) == {2}, "the last one's tag is freed with the next draft"
    assert sink.finish(2) is Finish.LENGTH
    assert held(target) == 0, "blocks that nobody will free"
    alone, expected = engine(make_target(folder), make_drafter(folder))
    alone.submit(request(2, [3, 5, 6] * 9, 20))
    finish(alone)
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
    assert held(target) == 0, "it has one caller at a time"


def by(caller: str, drafter: Drafter) -> Sender:
    sender = Sender(drafter)
    sender.origin = new_origin(caller)
    return sender


@pytest.mark.parametrize("make", DRAFTERS)
def test_two_callers_share_a_drafter_and_each_finds_its_own(folder: Path, make: Callable[[Path], Drafter]) -> None:
    """The same tags and numbers, other texts: what each is answered is what it is answered alone."""
    shared = make(folder)
    senders = {name: by(name, shared) for name in "ab"}
    alone = {name: by(name, make(folder)) for name in "ab"}
    starts = {"a": [5, 6, 7, 5, 6], "b": [9, 8, 9, 8, 9, 8]}
    texts = {name: [Text(1, list(tokens)), Text(2, tokens[1:])] for name, tokens in starts.items()}
    copies = {name: [Text(1, list(tokens)), Text(2, tokens[1:])] for name, tokens in starts.items()}
    for turn in range(6):
        for name in "ab":
            reply = senders[name].send(texts[name], 3)
            assert reply.status.tolist() == [RowStatus.OK] * 2, "the other one's messages close nothing"
            assert rows_of(reply.trees) == rows_of(alone[name].send(copies[name], 3).trees)
            for item in (*texts[name], *copies[name]):
                item.tokens += starts[name][turn % 4 :]
    last = {name: senders[name].work(texts[name], 3) for name in "ab"}
    replies = {name: shared.draft(last[name]) for name in "ab"}
    assert all(shared.draft(last[name]) is replies[name] for name in "ab"), "each has its own stored answer"
    senders["a"].send([], 0, frees=[1, 2])
    assert shared._ledger.tags() == {(senders["b"].origin, tag) for tag in (1, 2)}  # type: ignore[attr-defined]


@dataclass
class Kept:
    """A tag's state, of no kind in particular."""

    tag: int
    num_tokens: int


class Books:
    """A ledger whose time is set, and what it let go."""

    def __init__(self, most: int = 100) -> None:
        self.time = 0.0
        self.closed: list[tuple[int, bool]] = []
        self.ledger: Ledger[Kept, DraftReply] = Ledger(
            lambda opening: Kept(opening.tag, len(opening.tokens)),
            lambda kept, ended: self.closed.append((kept.tag, ended)),
            most=most,
            lease=10.0,
            now=lambda: self.time,
        )

    def send(self, origin: int, opens: Sequence[int] = (), rows: Sequence[int] = (), **rest: Any) -> list[bool]:
        """Which rows are known."""
        found: list[bool] = []

        def answer(work: DraftWork) -> DraftReply:
            self.ledger.update(work)
            found.extend(self.ledger.find(work, tag, 3) is not None for tag in rows)
            return DraftReply(NO_INTS, NO_INTS, Trees.empty(0), self.ledger.epoch, 0.0, 0.0)

        opened = tuple(Open(tag, np.ones(3, np.int32), 3, Sampling()) for tag in opens)
        nothing = (NO_INTS,) * 6
        self.ledger.once(DraftWork(np.asarray(rows, np.int32), *nothing, opens=opened, origin=origin, **rest), answer)
        return found


def test_a_caller_that_is_gone_is_forgotten_when_others_call() -> None:
    books, (gone, stays, other) = Books(), map(new_origin, ("gone", "stays", "other"))
    books.send(gone, opens=[1])
    books.send(stays, opens=[2])
    books.send(other, opens=[1])
    again = new_origin("other")
    books.send(again, opens=[3])
    assert books.ledger.tags() == {(gone, 1), (stays, 2), (again, 3)}, "it closed its own tags alone"
    books.send(again, frees=(3,))
    books.closed.clear()
    books.time = 9.0
    books.send(stays, rows=[2])
    assert books.ledger.tags() == {(gone, 1), (stays, 2)}
    books.time = 10.5
    books.send(stays, rows=[2])
    assert books.ledger.tags() == {(stays, 2)}
    assert books.closed == [(1, True)]
    books.time = 1e6
    assert books.send(stays, rows=[2]) == [True], "alone, it is as silent as it likes"
    assert books.send(gone, rows=[1]) == [False]


def test_beyond_the_most_the_least_recently_used_is_forgotten_whosever_it_is() -> None:
    books, one, two = Books(most=3), new_origin("one"), new_origin("two")
    books.send(one, opens=[1, 2])
    books.send(two, opens=[1])
    books.send(one, rows=[1])
    books.send(two, opens=[2])
    assert books.ledger.tags() == {(one, 1), (two, 1), (two, 2)}
    assert books.closed == [(2, False)]


def test_a_row_of_another_incarnation_of_the_answerer_is_stale_unless_it_is_opened() -> None:
    books, origin = Books(), new_origin("")
    books.send(origin, opens=[1, 2])
    foreign = books.ledger.epoch + 1
    assert books.send(origin, opens=[2], rows=[1, 2], epoch=foreign) == [False, True]
    assert books.send(origin, rows=[1, 2, 3], epoch=books.ledger.epoch) == [True, True, False]


def test_incarnations_of_a_caller_differ_and_are_known_for_the_same() -> None:
    first, again, other = new_origin("a"), new_origin("a"), new_origin("b")
    assert first != again
    assert first >> INCARNATION_BITS == again >> INCARNATION_BITS != other >> INCARNATION_BITS
    assert 0 <= max(first, again, other) < 1 << 63, "a message carries it as a signed number"
