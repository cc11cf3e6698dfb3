"""A target that runs ahead answers as one that does not, whatever the next message asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.contracts.profile import TargetSettings
from covey.contracts.types import NO_FLOATS, Ints, Open, RowStatus, Rule, Sampling, TargetReply, TargetWork, Trees
from covey.kv.sequences import Sequence
from covey.models.lanes import Stop
from covey.runtimes.compute import Compute
from covey.target.ahead import Ahead
from covey.target.runner import TargetRunner
from covey.target.verification import Verified
from tests.models import tiny_models

VOCABULARY = 97


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
            ints(tags),
            ints([len(self.texts[tag]) for tag in tags]),
            ints(chunk),
            Trees(offsets, drafts, parents, NO_FLOATS),
            tuple(opens),
            frees,
            self.sequence,
            epoch,
            ints([60 - len(self.texts[tag]) for tag in tags]),
        )

    def open(self, tag: int) -> Open:
        temperature = float(tag % 3 > 0)
        rule = Rule.REJECTION if tag % 3 == 2 else Rule.COUPLED
        sampling = Sampling(temperature, seed=tag, end_ids=(1,), rule=rule, presence_penalty=0.5 * (tag % 2))
        return Open(tag, ints(self.texts[tag]), len(self.texts[tag]), sampling)

    def see(self, work: TargetWork, reply: TargetReply) -> None:
        for row, tag in enumerate(work.tags.tolist()):
            assert reply.status[row] == RowStatus.OK
            new = reply.tokens[reply.offsets[row] : reply.offsets[row + 1]].tolist()
            self.texts[tag] += new
            self.cached[tag] = int(reply.num_cached_tokens[row])
            if len(self.texts[tag]) >= 60 or 1 in new or self.random.random() < 0.02:
                del self.texts[tag]
                self.frees.append(tag)


def ints(values: list[int]) -> Ints:
    return np.asarray(values, np.int32)


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
    ahead.step(TargetWork(ints([]), ints([]), ints([]), Trees.empty(0), frees=tuple(requests.texts), sequence=1 << 20))
    ahead.check()


def counting(runner: TargetRunner) -> list[object]:
    """The passes over the runner's model that have begun, from now on."""
    passes, forward = list[object](), runner._model.forward

    def counted(work: object) -> object:
        passes.append(work)
        return forward(work)  # type: ignore[arg-type]

    runner._model.forward = counted  # type: ignore[method-assign, assignment]
    return passes


def decode(runner: TargetRunner, prompt: list[int], count: int) -> tuple[list[int], list[int]]:
    """Greedy tokens one by one, and how many passes over the model had begun when each was answered."""
    passes, begun = counting(runner), list[int]()

    def answered() -> None:
        runner._ahead and runner._ahead._running and runner._ahead._running.result()
        begun.append(len(passes))

    return decode_with(runner, prompt, [[]] * count, Sampling(), room=count, answered=answered)[0], begun


def test_each_answer_but_the_last_is_followed_by_the_next_pass(folder: Path) -> None:
    prompt, count = [5, 9, 33], 8
    expected, one_by_one = decode(load(folder, False), prompt, count)
    found, begun = decode(load(folder, True), prompt, count)
    assert found == expected
    assert one_by_one == [1, 2, 3, 4, 5, 6, 7, 8]
    assert begun == [2, 3, 4, 5, 6, 7, 8, 8], "a pass ahead of each answer, and none past the end"


def decode_with(
    runner: TargetRunner,
    prompt: list[int],
    drafts: list[list[int]],
    sampling: Sampling,
    *,
    room: int = 99,
    answered: Callable[[], None] = lambda: None,
) -> tuple[list[int], list[bool]]:
    """Tokens of passes with these drafts, as chains, at most `room`, and whether each was followed by a guess."""
    tokens, guessed = list(prompt), []
    opens: tuple[Open, ...] = (Open(1, ints(prompt), len(prompt), sampling),)
    for step, draft in enumerate(drafts):
        trees = Trees(ints([0, len(draft)]), ints(draft), ints([*range(-1, len(draft) - 1)]))
        chunk, left = ints([len(prompt) if opens else 1]), ints([room - len(tokens) + len(prompt)])
        work = TargetWork(ints([1]), ints([len(tokens)]), chunk, trees, opens, sequence=step + 1, room=left)
        tokens += runner.step(work).tokens.tolist()
        opens = ()
        answered()
        guessed.append(runner._ahead is not None and runner._ahead._running is not None)
    return tokens[len(prompt) :], guessed


def test_a_row_with_drafts_is_computed_after_a_guess(folder: Path) -> None:
    prompt = [5, 9, 33]
    right, _ = decode(load(folder, False), prompt, 6)
    for divergence in (False, True):
        one, other = load(folder, True), load(folder, False)
        for runner in (one, other):
            decode_with(runner, prompt, [[], []], Sampling())
        trees = Trees(ints([0, 3]), ints([4, right[2], right[3]]), ints([-1, -1, 1]))
        base = [ints([1]), ints([5]), ints([1])]
        work = TargetWork(*base, trees, sequence=3, room=ints([9]), divergence=divergence)
        reply = one.step(work)
        same(reply, other.step(work))
        assert reply.tokens.tolist() == right[2:5]
        q = {"q_ids": ints([[4]]), "q_probs": np.ones((1, 1), np.float32)}
        trees = Trees(ints([0, 1]), ints([4]), ints([-1]), np.zeros(1, np.float32), **q)  # type: ignore[arg-type]
        wrong = replace(work, trees=trees, base=ints([8]), sequence=4)
        found, expected = one.step(wrong), other.step(wrong)
        same(found, expected)
        assert found.divergence.tolist() == expected.divergence.tolist()
        assert (found.divergence >= 0.0).all()


@pytest.mark.parametrize("rule", list(Rule))
def test_drafts_are_verified_alike_after_a_guess(folder: Path, rule: Rule) -> None:
    """Drafts that are right for none, some or all of their tokens."""
    sampling, random = Sampling(1.0, seed=3, rule=rule), np.random.default_rng(5)
    right, _ = decode_with(load(folder, False), [5, 9, 33], [[]] * 60, sampling)
    drafts: list[list[int]] = [[]]
    for _ in range(30):
        place = int(random.integers(1, 40))
        drafts.append([token if random.random() < 0.7 else 4 for token in right[place : place + 3]])
    for _ in range(3):  # the text so far says what is right
        found, _ = decode_with(load(folder, True), [5, 9, 33], drafts, sampling)
        assert (found, [False] * len(drafts)) == decode_with(load(folder, False), [5, 9, 33], drafts, sampling)
        drafts = [[], *(found[at : at + 3] if random.random() < 0.7 else [4] for at in range(1, len(found) - 3))][:20]


def test_a_request_that_takes_another_s_place_is_computed(folder: Path) -> None:
    """Each request is freed with its next token guessed, as one of just that many tokens is opened."""
    ahead, plain = load(folder, True), load(folder, False)
    random = np.random.default_rng(0)
    for tag in range(1, 16):
        prompt = ints(random.integers(2, VOCABULARY, 4 + tag).tolist())
        opens = (Open(tag, prompt, len(prompt), Sampling()),)
        work = TargetWork(
            *(ints([tag]), ints([len(prompt)]), ints([len(prompt)]), Trees.empty(1)),
            opens=opens,
            frees=(tag - 1,),
            sequence=tag,
            room=ints([9]),
        )
        same(ahead.step(work), plain.step(work))


def test_no_pass_is_made_ahead_among_rounds_with_drafts(folder: Path) -> None:
    """Such a pass would be in the way of the drafters and of the next pass."""
    drafts: list[list[int]] = [[], [], [4], [4], [4], *([] for _ in range(12))]
    _, guessed = decode_with(load(folder, True), [5, 9, 33], drafts, Sampling())
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
