"""Rounds between vLLM's steps, beside a stand-in of its runner: who is told what, and what planners learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from covey.contracts.clock import RealClock
from covey.contracts.errors import PortError
from covey.contracts.ports import Drafter
from covey.contracts.profile import Profile
from covey.contracts.types import Ints
from covey.drafters import load_drafter
from covey.loop.channel import Channel
from covey.planner.lessons import lesson_of
from covey.process.worker import Thread, Worker
from covey.requests.rounds import Round
from covey_vllm import CoveyProposer
from covey_vllm.proposer import Here
from covey_vllm.rounds import Rounds
from covey_vllm.texts import Texts
from tests.fakes import continuation
from tests.in_vllm.runner import Runner, config
from tests.loop.hash_drafters import HashDrafter
from tests.static_planner import StaticPlanner

PROMPTS = {f"r{index}": [3 + index % 5, 7, *range(index % 4), 1] for index in range(12)}


class Listening(StaticPlanner):
    """Keeps what it is to learn."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.learnt: list[Round] = []

    def learn(self, done: Round) -> None:
        self.learnt.append(done)


class Loop:
    """A proposer of `Rounds` and `Texts` alone."""

    def __init__(
        self,
        planner: StaticPlanner,
        drafters: dict[str, Drafter],
        ends: Sequence[int] = (),
        keep: Sequence[str] = (),
        worker: Callable[[str], Worker] = Thread,
    ) -> None:
        self.texts = Texts(256)
        self.rounds = Rounds(
            planner, drafters, RealClock(), budget=64, deadline=5.0, ends=ends, keep=keep, worker=worker
        )

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Ints, token_ids_cpu: Ints) -> list[list[int]]:
        rows = self.texts.follow(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, 0.0)
        self.rounds.forget(self.texts.gone())
        return self.rounds.next(rows, 0.0)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_others_drafted_is_kept_when_its_request_ends(keeps: bool) -> None:
    suffix = load_drafter("suffix", "", "", Profile("test"), name="suffix")
    loop = Loop(
        Listening(3),
        {"hash": HashDrafter(1.0), "suffix": suffix},
        keep=["suffix"] if keeps else (),
        worker=lambda _name: Here(),
    )
    first = Runner(loop, rows=4)
    first.serve(PROMPTS, 30)
    for name in ("a", "b"):
        first.serve({name: [9, 9]}, 60)  # meanwhile those before are found to have ended
    again = Runner(Loop(Listening(3), {"suffix": suffix}), rows=4)
    again.serve({f"again {name}": prompt for name, prompt in PROMPTS.items()}, 30)
    assert (again.accepted > 0.8 * again.proposed) == keeps


@pytest.mark.parametrize("forget", [0.0, 0.2])
def test_drafts_follow_each_text_wherever_its_row_is(forget: float) -> None:
    drafter = HashDrafter(1.0, forget)
    runner = Runner(Loop(Listening(3), {"hash": drafter}), rows=4)
    texts = runner.serve(PROMPTS, 30, preempts=0.1)
    assert texts == {name: continuation(prompt, 30) for name, prompt in PROMPTS.items()}
    assert runner.accepted == runner.proposed > 100  # a drafter that is always right was told the right texts
    for name in ("a", "b", "c"):
        runner.serve({name: [1, 2, 3]}, 30)  # what has ended is freed, with a later call
    assert len(drafter.tokens) <= 4


def test_lessons_are_what_came_of_the_drafts() -> None:
    planner = Listening(3)
    runner = Runner(Loop(planner, {"hash": HashDrafter(0.6)}), rows=4)
    runner.serve(PROMPTS, 30, preempts=0.05)
    learnt = planner.learnt
    # Drafts of rows that ended, or were preempted, are the only ones of which nothing is learnt.
    assert sum(int(done.reply.accepted.sum()) for done in learnt) <= runner.accepted
    assert sum(int(done.reply.accepted.sum()) for done in learnt) > 0.6 * runner.accepted
    for done in learnt:
        assert len(done.batch.rows) == done.batch.decoding == len(done.plan.depth) == done.kept.rows
        assert done.emitted == len(done.reply.tokens) == int((done.reply.accepted + 1).sum())
        offsets, tokens = done.kept.offsets, done.kept.tokens.tolist()
        for row, right in enumerate(done.reply.accepted.tolist()):
            drafts = tokens[offsets[row] : offsets[row + 1]]
            start = done.reply.offsets[row]
            assert done.reply.tokens[start : start + right].tolist() == drafts[:right]
    assert any(done.prefill_tokens for done in learnt)
    assert any(not done.prefill_tokens for done in learnt)


def test_a_pass_with_prompts_in_it_is_no_lesson_of_what_its_depth_costs() -> None:
    proposer = CoveyProposer(config({"drafters": {"ngram": "ngram"}, "speculation": {"policy": "fixed:2"}}))
    lessons = []
    proposer.use({"ngram": HashDrafter(0.8)})
    planner, rounds = proposer._planner, proposer._rounds
    assert planner is not None
    assert rounds is not None

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(planner, name)

        def learn(self, done: Round) -> None:
            assert done.plan.choice is not None
            lessons.append((done.prefill_tokens, lesson_of(done, done.plan.choice, 4)))
            planner.learn(done)

    rounds.planner = Watched()
    Runner(proposer, rows=4, chunk=4).serve(PROMPTS, 20)
    assert any(lesson.whole for _, lesson in lessons)
    assert not any(lesson.whole for prefill, lesson in lessons if prefill)
    for prefill, lesson in lessons:
        assert lesson.choice.situation.prefill == prefill
        assert lesson.choice.situation.rows >= sum(rows for _, rows in lesson.choice.situation.shares)


def test_nothing_is_drafted_behind_an_end_token() -> None:
    drafter = HashDrafter(1.0)
    loop = Loop(Listening(3), {"hash": drafter}, ends=[9])
    tokens = np.array([[5, 6, 7, 9], [5, 6, 7, 8]], np.int32)
    drafts = loop.propose([[9], [8]], np.array([4, 4], np.int32), tokens)
    assert [len(draft) for draft in drafts] == [0, 3]


def test_when_all_requests_are_others_the_time_between_is_nobodys() -> None:
    planner = Listening(3)
    loop = Loop(planner, {"hash": HashDrafter(1.0)})
    one = np.zeros((1, 16), np.int32)
    one[0, :3] = 5, 6, 7
    loop.propose([[7]], np.array([3], np.int32), one)
    one[0, :3] = 8, 9, 1
    loop.propose([[1]], np.array([3], np.int32), one)
    assert not planner.learnt


class Dying(HashDrafter):
    """Fails until it is told not to."""

    dead = True

    def draft(self, work: Any) -> Any:
        if self.dead:
            raise PortError("it is gone")
        return super().draft(work)


def test_a_drafter_that_dies_costs_drafts_alone_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.requests.roster.FIRST_REST", 0.0)
    monkeypatch.setattr("covey.requests.roster.LONGEST_REST", 0.0)
    drafter, failures = Dying(1.0), []
    drafter.dead = False
    loop = Loop(Listening(3), {"hash": drafter})
    monkeypatch.setattr(Channel, "_report", lambda _channel, _call, error: failures.append(error))
    runner = Runner(loop, rows=4)
    runner.serve({"a": [1, 2]}, 20)
    before = runner.accepted
    drafter.dead = True
    assert runner.serve({"b": [2, 2]}, 20) == {"b": continuation([2, 2], 20)}
    assert (runner.accepted, bool(failures)) == (before, True)
    drafter.dead = False
    runner.serve({"c": [4, 2]}, 20)
    assert runner.accepted > before
