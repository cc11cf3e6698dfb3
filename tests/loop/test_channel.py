from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from covey.contracts.errors import CoveyError, PortError
from covey.contracts.types import DraftReply, DraftWork, Rule
from covey.loop.channel import Channel
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Judge, Plan
from covey.requests.scheduler import Batch
from tests.fakes import ManualClock, request
from tests.loop.hash_drafters import Judging


class Held:
    """Implements `covey.process.worker.Worker`: calls are made when the test says so."""

    def __init__(self, _name: str) -> None:
        self.calls: list[tuple[Future[DraftReply], Callable[[DraftWork], DraftReply], DraftWork]] = []

    def submit(self, call: Callable[[DraftWork], DraftReply], work: DraftWork) -> Future[DraftReply]:
        future: Future[DraftReply] = Future()
        self.calls.append((future, call, work))
        return future

    def close(self) -> None:
        """No thread runs."""


class One:
    """A channel to one drafter, and two requests."""

    def __init__(self) -> None:
        self.clock, self.drafter = ManualClock(), Judging()
        self.roster = Roster(["one"], self.clock)
        self.workers: list[Held] = []
        self.errors: list[CoveyError] = []
        self.requests = [ActiveRequest(request(key, [key, 5, 9], 40)) for key in (1, 2)]
        self.channel = Channel(
            "one",
            self.drafter,
            self.roster,
            self.clock,
            lambda _name, error: self.errors.append(error),
            0,
            count(1),
            self._worker,
        )

    def _worker(self, name: str) -> Held:
        self.workers.append(Held(name))
        return self.workers[-1]

    @property
    def batch(self) -> Batch:
        return Batch(self.requests, np.ones(2, np.int32), (), (), 2)

    def draft(self) -> DraftWork:
        """Returns what was sent; nothing answers it yet."""
        two = np.full(2, 2, np.int32)
        self.call = self.channel.draft(self.batch, [0, 1], Plan(two, two - 1, ("one", "one")), 0.1)
        return self.call.work

    def read(self) -> DraftWork:
        rows = np.arange(2, dtype=np.int32)
        self.channel.read(self.batch, Judge("one", rows, rows * 0, 100))
        return self.workers[-1].calls[-1][2]

    def end(self, error: Exception | None = None, **changed: float) -> None:
        """The first call that was not made is."""
        future, call, work = self.workers[0].calls.pop(0)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(replace(call(work), **changed))  # type: ignore[arg-type]


ASK = pytest.mark.parametrize("ask", [One.draft, One.read], ids=["draft", "read"])


def answered(one: One, ask: Callable[[One], DraftWork], **changed: float) -> None:
    """The call is answered in time."""
    ask(one)
    one.end(**changed)
    if ask is One.read:
        one.channel.settle()
    else:
        assert one.channel.reply(one.call, 0.0) is not None


@ASK
def test_what_a_failed_call_was_to_free_the_next_one_frees(ask: Callable[[One], DraftWork]) -> None:
    one = One()
    one.channel.frees.append(8)
    assert ask(one).frees == (8,)
    one.end(PortError("no"))
    one.channel.settle()
    one.drafter.tokens[8] = []
    assert one.draft().frees == (8,)
    one.end()
    one.channel.settle()
    assert one.draft().frees == ()


@ASK
def test_a_reply_that_came_before_its_process_ended_counts(ask: Callable[[One], DraftWork]) -> None:
    one = One()
    ask(one)
    one.end()
    one.roster.gone("one")
    one.channel.settle()
    assert not one.errors
    assert len(one.workers) == 1
    assert [active.seen for active in one.requests] == [{"one": 3}] * 2


@ASK
def test_all_calls_to_a_process_that_has_ended_are_given_up(ask: Callable[[One], DraftWork]) -> None:
    one = One()
    one.read()
    if ask is One.draft:
        one.draft()
    one.roster.gone("one")
    one.channel.settle()
    assert [str(error) for error in one.errors] == ["its process ended before it answered"] * (1 + (ask is One.draft))
    assert len(one.workers) == 2
    assert [len(opening.tokens) for opening in one.draft().opens] == [3, 3], "its successor knows nothing"
    assert len(one.workers[1].calls) == 1


@pytest.mark.parametrize("rule", list(Rule))
def test_the_rejection_rule_asks_for_the_rows_that_nodes_were_proposed_from(rule: Rule) -> None:
    one = One()
    asked = one.requests[1].request
    one.requests[1].request = replace(asked, sampling=replace(asked.sampling, rule=rule))
    assert one.draft().q_rows is (rule is Rule.REJECTION)
