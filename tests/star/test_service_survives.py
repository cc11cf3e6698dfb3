"""What a shared drafter's service goes on after: messages made to break it, pauses, and faults of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import PortError
from covey.contracts.ports import Drafter
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, RowStatus
from covey.drafters.service import DraftService
from covey.drafters.speed import Speed
from covey.wire.ledger import new_origin
from tests.drafters.drafting import Sender, Text
from tests.star.serving import VOCABULARY, Held, answer, joined, later, neural, prompt, senders

Serve = Callable[..., DraftService]
LARGEST = 1.7e308  # a message may say so


class Timed:
    """A drafter that takes as long as it is told to, by a clock of its own."""

    def __init__(self, drafter: Drafter, seconds: float) -> None:
        self.drafter, self.seconds, self.time = drafter, seconds, 0.0

    def now(self) -> float:
        return self.time

    def info(self) -> DrafterInfo:
        return self.drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        self.time += self.seconds
        return replace(self.drafter.draft(work), draft_seconds=self.seconds)


class Asking:
    """Servers that ask for two tokens after one text each, in turns."""

    def __init__(self, service: DraftService, count: int) -> None:
        self.service, self.rng = service, np.random.default_rng(20)
        self.senders = senders(service, *map(str, range(count)))
        self.texts = [Text(1, prompt(self.rng, 12)) for _ in self.senders]

    def ask(self, index: int, **given: Any) -> DraftReply:
        sender, text = self.senders[index], self.texts[index]
        reply = self.service.draft(replace(sender.work([text], 2), **given), f"{index}")
        sender._noted([text], reply)
        text.seen = text.seen or None
        text.tokens += prompt(self.rng, 2)
        return reply


def test_a_sender_that_can_wait_for_ever_ends_no_thread(folder: Path, serve: Serve) -> None:
    asking = Asking(serve(neural(folder)), 2)
    for index in (0, 1, 0, 1):
        reply = asking.ask(index, patience=LARGEST)
        assert reply.status.tolist() == [RowStatus.OK]
    list(asking.service.gauges())


def test_tokens_that_the_drafter_lacks_break_nothing_for_who_is_joined_with_them(folder: Path, serve: Serve) -> None:
    held, rng = Held(neural(folder)), np.random.default_rng(22)
    held.gate.set()
    service = serve(held)
    bad = Sender(None, new_origin("bad"))  # type: ignore[arg-type]
    alone = service.at_once(bad.work([Text(1, [5, VOCABULARY])], 2), "bad")
    assert alone is not None
    assert alone.status.tolist() == [RowStatus.OK]
    one, two = senders(service, "a", "b")
    replies = joined(
        held,
        service,
        lambda: one.send([Text(1, prompt(rng, 12))], 2),
        lambda: two.send([Text(1, prompt(rng, 12))], 2),
        lambda: service.draft(bad.work([Text(1, [5, VOCABULARY], seen=2)], 2), "bad"),
    )
    assert [reply.status.tolist() for reply in replies] == [[RowStatus.OK]] * 3
    assert held.together == [1, 1, 2]


def test_one_that_was_slow_once_is_found_out_to_be_fast_again(folder: Path, serve: Serve) -> None:
    """As a process that was paused in the middle of a call. Nobody who is told at once that it would be too late
    measures anything."""
    drafter = Timed(neural(folder), 0.004)
    asking = Asking(serve(drafter, now=drafter.now), 3)
    for index in (0, 1, 2) * 5:
        assert asking.ask(index, patience=0.4).status.tolist() == [RowStatus.OK]
    drafter.seconds = 20.0
    asking.ask(0, patience=0.4)
    drafter.seconds = 0.004
    found = [asking.ask(turn % 3, patience=0.4).status.tolist()[0] for turn in range(60)]
    assert RowStatus.SKIPPED in found, "the pause was long enough"
    assert found[-20:] == [RowStatus.OK] * 20


def test_a_drafter_that_stays_too_slow_is_seldom_tried(folder: Path, serve: Serve) -> None:
    drafter = Timed(neural(folder), 4.0)
    asking = Asking(serve(drafter, now=drafter.now), 3)
    found = [asking.ask(turn % 3, patience=0.4).status.tolist()[0] for turn in range(200)]
    assert 0 < found.count(RowStatus.OK) < 40


def test_a_fault_in_choosing_whose_turn_it_is_loses_those_calls_alone(
    folder: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, rng = serve(neural(folder)), np.random.default_rng(23)
    (sender,) = senders(service, "a")
    monkeypatch.setattr(Speed, "depth", lambda *_given: 1 / 0)
    assert isinstance(answer(later(lambda: sender.send([Text(1, prompt(rng, 12))], 2))), PortError)
    monkeypatch.undo()
    assert sender.send([Text(2, prompt(rng, 12))], 2).status.tolist() == [RowStatus.OK]
