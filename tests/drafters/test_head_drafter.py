"""A head drafts what its definition says, however it is told of a text, and never changes what comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.contracts.ports import Drafter
from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.contracts.types import NO_INTS, DraftReply, DraftWork, RowStatus, Rule, Sampling
from covey.drafters.neural import NeuralDrafter
from covey.loop.configuration import EngineHooks
from covey.target.runner import TargetRunner
from covey.wire import codec
from tests.arrays import ints
from tests.drafters.drafting import Text, paths_of, rows_of
from tests.drafters.head_sender import HeadSender
from tests.engines import engine_to, finish
from tests.fakes import Collector, request
from tests.models import tiny_heads, tiny_models
from tests.models.tiny_heads import Formula
from tests.static_planner import StaticPlanner
from tests.target.driver import Driver

SETTINGS = DrafterSettings(dtype="float32", kv_blocks=64)
RNG = np.random.default_rng(4)
PROMPTS = [RNG.integers(2, 97, length).tolist() for length in (40, 2, 17, 70)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("models") / "target", "llama", **tiny_heads.TARGET)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_heads.build(tmp_path_factory.mktemp("models") / "head")


@pytest.fixture(scope="module")
def formula(head: Path, target: Path) -> Formula:
    return Formula(head, target)


RUNTIMES = pytest.mark.parametrize("dtype", ["float32", "float64"], ids=["native", "PyTorch"])


def loaded(head: Path, target: Path, **changes: Any) -> NeuralDrafter:
    return NeuralDrafter.load(head, replace(SETTINGS, **changes), name="draft_head", target=target)


@RUNTIMES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_chains_are_those_of_the_formula_as_texts_grow(
    temperature: float, dtype: str, head: Path, target: Path, formula: Formula
) -> None:
    """With the noise of their positions, as the target draws; told whole or piece by piece, behind what it proposed or
    not, after being called stale, several at once."""
    drafter = loaded(head, target, dtype=dtype)
    sender = HeadSender(drafter, formula)
    texts = [Text(tag, list(prompt), Sampling(temperature, seed=tag)) for tag, prompt in enumerate(PROMPTS)]
    for accepted in (0, 3, 2, 1, 4):
        depths = [4, 2, 3, 4]
        reply = sender.send(texts, depths)
        drafter.check()
        assert not reply.status.any()
        assert reply.seen.tolist() == [len(text.tokens) for text in texts]
        for text, drafted, depth in zip(texts, rows_of(reply.trees), depths):
            assert drafted == sender.expected(text, depth)
            text.tokens += [*drafted[:accepted], 5]
    texts[1].seen = None  # to be opened again
    texts[2].seen = 3  # and a text that went on otherwise
    texts[2].tokens[3:] = [7, 8, 9, 10]
    for text, drafted in zip(texts, rows_of(sender.send(texts, 3).trees)):
        assert drafted == sender.expected(text, 3)


@RUNTIMES
def test_a_long_text_is_read_over_several_calls(dtype: str, head: Path, target: Path, formula: Formula) -> None:
    sender = HeadSender(loaded(head, target, dtype=dtype, catch_up_tokens=25), formula)
    text = Text(1, list(PROMPTS[3]))
    statuses = []
    for _ in range(4):
        reply = sender.send([text], 3)
        statuses += reply.status.tolist()
        if not reply.status.any():
            assert rows_of(reply.trees) == [sender.expected(text, 3)]
        text.tokens.append(11)
    assert statuses == [RowStatus.SKIPPED, RowStatus.OK, RowStatus.OK, RowStatus.OK]


@RUNTIMES
def test_a_head_with_few_tokens_and_normed_outputs_drafts_by_the_formula(
    dtype: str, target: Path, tmp_path: Path
) -> None:
    head = tiny_heads.build(tmp_path, known=range(1, 97, 2), norm_output=True)
    sender = HeadSender(loaded(head, target, dtype=dtype), Formula(head, target, normed_output=True))
    texts = [Text(tag, list(prompt), Sampling(tag % 2, seed=tag)) for tag, prompt in enumerate(PROMPTS)]
    for text, drafted in zip(texts, rows_of(sender.send(texts, 4).trees)):
        assert drafted == sender.expected(text, 4)


@RUNTIMES
def test_trees_are_the_formulas_beams(dtype: str, head: Path, target: Path, formula: Formula) -> None:
    """Each node reads the output of the node above it."""
    sender = HeadSender(loaded(head, target, dtype=dtype), formula)
    texts = [Text(tag, list(prompt)) for tag, prompt in enumerate(PROMPTS)]
    reply = sender.send(texts, 4, 3)
    branches = 0
    for row, text in enumerate(texts):
        states = tiny_heads.floats(tiny_heads.words(formula.states(text.tokens))[:-1])
        paths = paths_of(reply.trees, row)
        assert paths == formula.beam(text.tokens, states, 4, 3)
        branches += len({tuple(path[:-1]) for path in paths if len(path) > 2}) > 2
    assert branches > 1, "some have nodes below several of a level"


def test_a_text_that_was_cut_keeps_too_few_states_for_others_pace(head: Path, target: Path, formula: Formula) -> None:
    sender = HeadSender(loaded(head, target), formula)
    cut, slow = Text(1, list(PROMPTS[3])), Text(2, PROMPTS[0][:20])
    for _ in range(2):  # with the second call only the last states are left
        sender.send([cut], 1)
        cut.tokens.append(9)
    cut.tokens, cut.seen = [*cut.tokens[:30], 7], 30
    for text, drafted in zip((cut, slow), rows_of(sender.send([cut, slow], 3).trees)):
        assert drafted == sender.expected(text, 3)


def test_tokens_without_their_states_are_stale(head: Path, target: Path, formula: Formula) -> None:
    drafter = loaded(head, target)
    sender = HeadSender(drafter, formula)
    text = Text(1, list(PROMPTS[0]))

    def stale(work: DraftWork, **changes: Any) -> None:
        sender.sequence += 1
        reply = drafter.draft(replace(work, sequence=sender.sequence, **changes))
        assert reply.status.tolist() == [RowStatus.STALE]

    work = sender.work([text], 2)
    stale(work, states=work.states[:-1], state_offsets=work.state_offsets - np.int32([0, 1]))
    stale(work, states=work.states[:0], state_offsets=NO_INTS)
    stale(work, states=work.states[:, :-2])
    for _ in range(3):  # also where nothing new is told
        assert rows_of(sender.send([text], 2).trees) == [sender.expected(text, 2)]
    stale(sender.work([text], 2), keep=np.zeros(1, np.int32))  # of its first token it knows nothing
    drafter.check()
    work = sender.work([Text(1, [*text.tokens, 5], seen=text.seen)], 2)
    stale(work, states=work.states[:0], state_offsets=NO_INTS)
    longer = np.asarray([len(text.tokens) + 1], np.int32)
    stale(sender.work([text], 2), keep=longer)  # the states that it has are of other tokens


class OverTheWire:
    """A drafter behind messages, which may lose what it knows."""

    def __init__(self, drafter: NeuralDrafter, lose: int = 0) -> None:
        self._drafter, self._lose, self.calls = drafter, lose, 0
        self.proposed: dict[int, dict[int, list[int]]] = {}  # by tag and length of its text

    def info(self) -> Any:
        return codec.decode_drafter_info(codec.encode(self._drafter.info()))

    def draft(self, work: DraftWork) -> DraftReply:
        self.calls += 1
        if self._lose and self.calls % self._lose == 0:
            self._drafter._ledger.clear()
        reply = self._drafter.draft(codec.decode_draft_work(codec.encode(work)))
        for tag, seen, drafted in zip(work.tags.tolist(), reply.seen.tolist(), rows_of(reply.trees)):
            if drafted:
                self.proposed.setdefault(tag, {})[seen] = drafted
        return codec.decode_draft_reply(codec.encode(reply))


def answers(
    runner: TargetRunner, head: OverTheWire | None, *samplings: Sampling, times: int, width: int = 1
) -> Collector:
    """The prompts so many times, the samplings in turn: the later ones find the earlier ones' blocks."""
    sink, failed = Collector(), list[object]()
    drafters: dict[str, Drafter] = {} if head is None else {"draft_head": head}
    hooks = EngineHooks(drafter_failed=lambda *problem: failed.append(problem))
    planner = StaticPlanner(0 if head is None else 3, width)
    limits = {"max_running": 3, "token_budget": 32, "growth_tokens": 16, "block_size": 32}
    engine = engine_to(sink, runner, planner, drafters, hooks=hooks, **limits)
    if head is not None:
        engine.roster.came("draft_head", head.info())
    key = 0
    for _ in range(times):
        for prompt in PROMPTS:
            key += 1
            sampling = replace(samplings[key % len(samplings)], seed=key % len(PROMPTS))
            engine.submit(request(key, prompt, 30, sampling=sampling))
        finish(engine)
    assert not failed
    return sink


PLAIN = TargetSettings(dtype="bfloat16", device="cpu", kv_blocks=40, threads=1)


@pytest.mark.parametrize("width", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_the_text_is_the_same_with_a_head_and_without(width: int, head: Path, target: Path) -> None:
    """Prompts longer than a pass, prefixes found, requests that wait, a head that forgets. Rejection sampling preserves
    only the distribution."""
    exact, rejection = (
        (Sampling(), Sampling(temperature=0.8, top_p=0.9)),
        Sampling(temperature=1.0, rule=Rule.REJECTION),
    )
    plain = TargetRunner.load(target, PLAIN, token_budget=64, name="target")
    expected = answers(plain, None, replace(rejection, rule=Rule.COUPLED), *exact, times=3)
    named = replace(PLAIN, head="draft_head", kv_blocks=6)  # so few that requests are preempted
    runner = TargetRunner.load(target, named, token_budget=64, name="target", head=str(head))
    drafter = OverTheWire(loaded(head, target), lose=9)
    found = answers(runner, drafter, rejection, *exact, times=3, width=width)
    runner.check()
    assert drafter.calls > 10
    for key, tokens in expected.tokens.items():
        assert len(found.tokens[key]) == len(tokens)
        assert found.tokens[key] == tokens or key % 3 == 0


@RUNTIMES
def test_what_it_drafts_behind_the_targets_own_states_is_the_formulas(
    dtype: str, head: Path, target: Path, formula: Formula
) -> None:
    """Also where a prompt was found in the cache, so that no pass of that request computed its states."""
    settings = replace(PLAIN, dtype=dtype, numerics="fast", head="draft_head")
    runner = TargetRunner.load(target, settings, token_budget=64, name="target", head=str(head))
    drafter = OverTheWire(loaded(head, target, dtype=dtype))
    found = answers(runner, drafter, Sampling(), times=2)
    count = len(PROMPTS)
    assert max(found.ended[key].reused for key in range(count + 1, 2 * count + 1)) >= 64
    same = []
    for key, by_length in drafter.proposed.items():
        text = PROMPTS[(key - 1) % count] + found.tokens[key]
        for length, drafted in by_length.items():
            states = tiny_heads.floats(tiny_heads.words(formula.states(text[: length - 1])))
            same.append(drafted == formula.chain(text[:length], states, len(drafted)))
    for key in range(1, count + 1):
        cold, warm = drafter.proposed[key], drafter.proposed[key + count]
        assert min(cold) == min(warm) == len(PROMPTS[key - 1]) + 1, "it drafts from the first token on"
        assert len(cold.keys() & warm.keys()) > 15
    assert len(same) > 150
    assert np.mean(same) > 0.95, "the last bit of a state may differ, and hardly ever says which token is best"


def test_a_row_that_was_not_computed_brings_no_states(head: Path, target: Path) -> None:
    settings = replace(PLAIN, dtype="float32", numerics="fast", head="draft_head")
    runner = TargetRunner.load(target, settings, token_budget=64, name="target", head=str(head))
    driver = Driver(runner)
    driver.open(1, PROMPTS[2])
    assert np.diff(driver.step(1, states_from=ints(0)).state_offsets).tolist() == [len(PROMPTS[2])]
    driver.texts[1].pop()
    stale = driver.step(1, states_from=ints(0))
    assert stale.status.tolist() == [RowStatus.STALE]
    assert not len(stale.states)
