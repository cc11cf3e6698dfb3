"""A target that runs ahead answers as one that does not, whatever the next message asks for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.contracts.profile import TargetSettings
from covey.contracts.types import NO_FLOATS, Open, RowStatus, Rule, Sampling, TargetReply, TargetWork, Trees
from covey.kv.sequences import Sequence
from covey.models.lanes import Stop
from covey.runtimes.compute import Compute
from covey.target.ahead import Ahead
from covey.target.runner import TargetRunner
from covey.target.verification import Verified
from tests.arrays import ints
from tests.models import tiny_models
from tests.target.driver import Driver, Text

VOCABULARY, PROMPT = 97, [5, 9, 33]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of as few layers as have keys that depend on the tokens before: those of a wrong guess are seen."""
    return tiny_models.build(tmp_path_factory.mktemp("ahead"), "llama", num_hidden_layers=2)


def load(folder: Path, run_ahead: bool, blocks: int = 400, *, native: bool = False) -> TargetRunner:
    """`native`: by the runtime whose passes can be stopped, in two threads; else by PyTorch."""
    kind: dict[str, Any] = {"dtype": "float32", "threads": 2, "block_size": 32} if native else {"dtype": "float64"}
    settings = TargetSettings(**{"threads": 1, "block_size": 4, "kv_blocks": blocks, "run_ahead": run_ahead} | kind)
    return TargetRunner.load(folder, settings, token_budget=256, name="target")


class Requests:
    """What a scheduler would ask for, at random: requests come and go, draft or not; some prompts take two passes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.texts: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.last_tag = 0
        self.sequence = 0
        self.frees: list[int] = []

    def work(self, epoch: int) -> TargetWork:
        opens = []
        if not self.texts or (self.random.random() < 0.1 and len(self.texts) < 6):
            self.last_tag += 1
            self.texts[self.last_tag] = self.random.integers(2, VOCABULARY, self.random.integers(1, 20)).tolist()
            self.cached[self.last_tag] = 0
            opens.append(self.open(self.last_tag))
        tags = sorted(self.texts)
        if len(tags) > 1 and self.random.random() < 0.05:
            tags.pop(int(self.random.integers(len(tags))))  # a row sits a pass out
            opens = [opening for opening in opens if opening.tag in tags]
            self.texts = {tag: text for tag, text in self.texts.items() if tag in tags or self.cached[tag]}
        chunk = [min(8, len(self.texts[tag]) - self.cached[tag]) for tag in tags]
        drafting = self.random.random() < 0.2
        sizes = [int(drafting and self.cached[tag] + c == len(self.texts[tag])) * 2 for tag, c in zip(tags, chunk)]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        drafts = self.random.integers(2, VOCABULARY, offsets[-1]).astype(np.int32)
        parents = np.tile([-1, 0], offsets[-1] // 2).astype(np.int32)
        self.sequence += 1
        frees, self.frees = tuple(self.frees), []
        return TargetWork(
            ints(*tags),
            ints(*(len(self.texts[tag]) for tag in tags)),
            ints(*chunk),
            Trees(offsets, drafts, parents, NO_FLOATS),
            tuple(opens),
            frees,
            self.sequence,
            epoch,
            ints(*(60 - len(self.texts[tag]) for tag in tags)),
        )

    def open(self, tag: int) -> Open:
        temperature = float(tag % 3 > 0)
        rule = Rule.REJECTION if tag % 3 == 2 else Rule.COUPLED
        sampling = Sampling(temperature, seed=tag, end_ids=(1,), rule=rule, presence_penalty=0.5 * (tag % 2))
        return Open(tag, ints(*self.texts[tag]), len(self.texts[tag]), sampling)

    def see(self, work: TargetWork, reply: TargetReply) -> None:
        for row, tag in enumerate(work.tags.tolist()):
            assert reply.status[row] == RowStatus.OK
            new = reply.tokens[reply.offsets[row] : reply.offsets[row + 1]].tolist()
            self.texts[tag] += new
            self.cached[tag] = int(reply.num_cached_tokens[row])
            if len(self.texts[tag]) >= 60 or 1 in new or self.random.random() < 0.02:
                del self.texts[tag]
                self.frees.append(tag)


def same(one: TargetReply, other: TargetReply) -> None:
    for name in ("status", "num_cached_tokens", "reused", "accepted", "offsets", "tokens"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-5)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("native", [False, True])
def test_the_same_answers_whatever_is_asked_next(folder: Path, seed: int, native: bool) -> None:
    ahead, plain = (load(folder, each, native=native) for each in (True, False))
    requests = Requests(seed)
    for _ in range(250):
        work = requests.work(0)
        reply = ahead.step(work)
        same(reply, plain.step(work))
        requests.see(work, reply)
    ahead.step(TargetWork(ints(), ints(), ints(), Trees.empty(0), frees=tuple(requests.texts), sequence=1 << 20))
    ahead.check()


def counting(runner: TargetRunner) -> list[object]:
    """The passes over the runner's model that have begun, from now on."""
    passes, forward = list[object](), runner._model.forward

    def counted(work: object) -> object:
        passes.append(work)
        return forward(work)  # type: ignore[arg-type]

    runner._model.forward = counted  # type: ignore[method-assign, assignment]
    return passes


def test_each_answer_but_the_last_is_followed_by_the_next_pass(folder: Path) -> None:
    begun = []
    for ahead in (False, True):
        runner = load(folder, ahead)
        text, passes = Text(runner, PROMPT, room=8), counting(runner)
        for _ in range(8):
            text.go()
            if runner._ahead is not None and runner._ahead._running is not None:
                runner._ahead._running.result()
            begun.append(len(passes))
    assert begun[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert begun[8:] == [2, 3, 4, 5, 6, 7, 8, 8], "a pass ahead of each answer, and none past the end"


def decoded(runner: TargetRunner, drafts: list[list[int]], sampling: Sampling) -> tuple[list[int], list[bool]]:
    """Return the tokens of passes with these drafts, as chains, and whether each was followed by a guess."""
    text, guessed = Text(runner, PROMPT, sampling), []
    for chain in drafts:
        text.step(1, chains=[chain])
        guessed.append(runner._ahead is not None and runner._ahead._running is not None)
    return text.tokens[len(PROMPT) :], guessed


def test_a_row_with_drafts_is_computed_after_a_guess(folder: Path) -> None:
    """With a tree, and with drafts whose likeness to the target is asked for."""
    right, _ = decoded(load(folder, False), [[]] * 6, Sampling())
    one, other = (Text(load(folder, ahead), PROMPT) for ahead in (True, False))
    tree = Trees(ints(0, 3), ints(4, right[2], right[3]), ints(-1, -1, 1))
    q = {"q_ids": ints(4).reshape(1, 1), "q_probs": np.ones((1, 1), np.float32)}
    wrong = Trees(ints(0, 1), ints(4), ints(-1), np.zeros(1, np.float32), **q)  # type: ignore[arg-type]
    for trees, divergence in ((None, False), (None, False), (tree, False), (wrong, True), (None, True)):
        found, expected = (each.step(1, trees=trees, divergence=divergence) for each in (one, other))
        same(found, expected)
        assert found.divergence.tolist() == expected.divergence.tolist()
        assert trees is not wrong or found.divergence[0] >= 0.0
    assert one.tokens[len(PROMPT) :][:5] == right[:5]


@pytest.mark.parametrize("rule", list(Rule))
def test_drafts_are_verified_alike_after_a_guess(folder: Path, rule: Rule) -> None:
    """Drafts that are right for none, some or all of their tokens."""
    sampling, random = Sampling(1.0, seed=3, rule=rule), np.random.default_rng(5)
    right, _ = decoded(load(folder, False), [[]] * 60, sampling)
    drafts: list[list[int]] = [[]]
    for _ in range(30):
        place = int(random.integers(1, 40))
        drafts.append([token if random.random() < 0.7 else 4 for token in right[place : place + 3]])
    for _ in range(3):  # the text so far says what is right
        found, _ = decoded(load(folder, True), drafts, sampling)
        assert (found, [False] * len(drafts)) == decoded(load(folder, False), drafts, sampling)
        drafts = [[], *(found[at : at + 3] if random.random() < 0.7 else [4] for at in range(1, len(found) - 3))][:20]


def test_a_request_that_takes_another_s_place_is_computed(folder: Path) -> None:
    """Each request is freed with its next token guessed, as one of just that many tokens is opened."""
    ahead, plain = Driver(load(folder, True)), Driver(load(folder, False))
    random = np.random.default_rng(0)
    for tag in range(1, 16):
        prompt = random.integers(2, VOCABULARY, 4 + tag).tolist()
        for driver in (ahead, plain):
            if tag > 1:
                driver.free(tag - 1)
            driver.open(tag, prompt, room=9)
        same(ahead.step(tag), plain.step(tag))


def test_no_pass_is_made_ahead_among_rounds_with_drafts(folder: Path) -> None:
    """Such a pass would be in the way of the drafters and of the next pass."""
    drafts: list[list[int]] = [[], [], [4], [4], [4], *([] for _ in range(12))]
    _, guessed = decoded(load(folder, True), drafts, Sampling())
    assert guessed[0]
    assert not any(guessed[3:6])
    assert all(guessed[-3:])


def rows_with_a_tag() -> list[Sequence]:
    return [Sequence(1, np.zeros(4, np.int32), 3, "", 0, 0)]


def test_a_pass_that_fails_before_it_is_launched_holds_nobody_up() -> None:
    def compute(_rows: list[Sequence], _trees: Trees, _stop: Stop) -> Verified:
        raise RuntimeError("no memory")

    ahead = Ahead(compute, Compute(1), threading.Event())
    ahead.guess(rows_with_a_tag(), Trees.empty(1))
    with pytest.raises(RuntimeError, match="no memory"):
        ahead.collect(wanted=True)
