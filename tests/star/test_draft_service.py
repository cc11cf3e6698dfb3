"""One drafter for several senders: texts and tags apart, nobody idle or starved, nothing hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import PortError
from covey.contracts.types import DraftReply, RowStatus, Sampling
from covey.drafters.queue import QueueLimits
from covey.drafters.service import GONE, MOST_WAITING, DraftService
from covey.drafters.speed import Speed
from covey.emulated.devices import EmulatedDrafter, HashModel
from covey.star.callers import Authenticator, CallingServer
from covey.wire.ledger import new_origin
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock
from tests.drafters.drafting import Sender, Text, rows_of
from tests.star.serving import VOCABULARY, From, Held, answer, joined, later, neural, prompt, senders
from tests.waiting import until

Serve = Callable[..., DraftService]


def emulated(_folder: Path) -> EmulatedDrafter:
    steps = ((1, 1, 0.001), (64, 64, 0.001))
    costs = CostTable("made up", "for tests", steps, (), {"draft": steps}, {"draft": steps})
    return EmulatedDrafter(costs, HashModel(VOCABULARY), VirtualClock(), name="draft", rates={"": (0.7,)})


@pytest.mark.parametrize("make", [neural, emulated], ids=["neural", "emulated"])
def test_rows_of_several_senders_are_drafted_in_one_pass_and_as_if_alone(
    make: Callable[[Path], Any], folder: Path, serve: Serve
) -> None:
    held, fresh = Held(make(folder)), make(folder)
    service, rng = serve(held), np.random.default_rng(3)
    sharing = senders(service, "a", "b", "c", "d")
    alone = [Sender(fresh, new_origin(f"{index}")) for index in range(4)]
    samplings = [Sampling(), Sampling(temperature=1.0, seed=7)]
    texts = [[Text(tag, prompt(rng, 5 + 9 * tag), samplings[tag % 2]) for tag in range(3)] for _ in sharing]
    copies = [[Text(each.tag, list(each.tokens), each.sampling) for each in own] for own in texts]
    shapes: list[tuple[Any, int]] = [(3, 1), *(([1 + i, 2, 4], 1 + i % 2) for i in (1, 2, 3))]  # depths and widths
    for turn in range(6):
        rest = [lambda i=i: sharing[i].send(texts[i], *shapes[i]) for i in (1, 2, 3)]
        replies = joined(held, service, lambda even=turn % 2 == 0: sharing[0].send(texts[0], 3, q_rows=even), *rest)
        assert held.together[-2:] == [1, 3]
        for index, reply in enumerate(replies):
            expected = alone[index].send(copies[index], *shapes[index])
            assert rows_of(reply.trees) == rows_of(expected.trees), (turn, index)
            assert reply.status.tolist() == expected.status.tolist()
            assert (reply.trees.q_ids is not None) == (index == 0 and turn % 2 == 0 and make is neural)
        for own, copied in zip(texts, copies):
            for each, copy in zip(own, copied):
                new = prompt(rng, 1 + turn % 3)
                each.tokens += new
                copy.tokens += new
    if make is neural:
        held.drafter.check()  # type: ignore[attr-defined]


def test_a_late_call_is_told_to_decode_plainly_and_nothing_is_lost(folder: Path, serve: Serve) -> None:
    held, rng = Held(neural(folder)), np.random.default_rng(6)
    held.gate.set()
    service = serve(held)
    busy, hasty = senders(service, "busy", "hasty")
    long, short, freed = Text(1, prompt(rng, 20)), Text(1, prompt(rng, 20)), Text(2, prompt(rng, 20))
    busy.send([long], 4)
    hasty.send([short, freed], 4)
    service._speed = Speed()
    service._speed.update(1, 1, 1e-5)  # however slow this machine is now: it has time when it comes
    held.gate.clear()
    held.inside.clear()
    first = later(lambda: busy.send([long], 4))
    held.inside.wait(10)
    short.tokens += [9, 8]
    hurried = replace(hasty.work([short], 4, frees=[2]), patience=0.01)
    second = later(lambda: service.draft(hurried, "hasty"))
    until(lambda: len(service._queue) == 1)
    time.sleep(0.03)
    held.gate.set()
    answer(first)
    reply = answer(second)
    assert reply.status.tolist() == [RowStatus.SKIPPED]
    assert reply.seen.tolist() == [20], "what it held before"
    assert not len(reply.trees.tokens)
    assert reply.wait_seconds >= 0.01
    again = hasty.send([short], 4)
    assert again.status.tolist() == [RowStatus.OK]
    assert again.seen.tolist() == [22]
    assert hasty.send([Text(2, freed.tokens, seen=20)], 2).status.tolist() == [RowStatus.STALE], "freed all the same"


def test_who_breaks_the_drafter_breaks_it_for_himself_alone(folder: Path, serve: Serve) -> None:
    held, rng = Held(neural(folder)), np.random.default_rng(8)
    service = serve(held)
    sharing = senders(service, "a", "b", "c")
    texts = [Text(1, prompt(rng, 12)) for _ in sharing]

    def all_are(kind: type) -> bool:
        calls = [lambda i=i: sharing[i].send([texts[i]], 2) for i in range(3)]
        return all(isinstance(each, kind) for each in joined(held, service, *calls))

    assert all_are(DraftReply)
    held.failure = PortError("out of memory")
    assert all_are(PortError)
    held.failure = None
    for sender, text in zip(sharing, texts):
        sender.epoch, text.seen = 0, None
    assert all_are(DraftReply)
    assert held.together[-3:] == [1, 1, 1], "apart for a while"
    held.drafter.check()  # type: ignore[attr-defined]


def test_nothing_hangs_when_it_stops(folder: Path) -> None:
    held, rng = Held(neural(folder)), np.random.default_rng(10)
    service = DraftService(held)
    one, two = senders(service, "a", "b")
    first = later(lambda: one.send([Text(1, prompt(rng, 12))], 2))
    held.inside.wait(10)
    second = later(lambda: two.send([Text(1, prompt(rng, 12))], 2))
    until(lambda: len(service._queue) == 1)
    ending = threading.Thread(target=service.stop)
    ending.start()
    until(lambda: service._stopped)
    held.gate.set()
    assert isinstance(answer(first), DraftReply)
    assert isinstance(answer(second), PortError)
    ending.join(20)
    assert not ending.is_alive()
    with pytest.raises(PortError):
        service.draft(one.work([Text(2, prompt(rng, 4))], 1), "a")


def test_random_traffic_of_many_threads_drafts_what_a_drafter_of_its_own_would(folder: Path, serve: Serve) -> None:
    """Evictions, refusals, late answers and re-openings change who is drafted for, never what is proposed."""
    drafter, own_drafters = neural(folder, blocks=60), [neural(folder) for _ in range(4)]  # no two load at a time
    service = serve(drafter, limits=QueueLimits(rows=5, bound=0.01))
    problems: list[str] = []

    def run(index: int) -> None:
        rng = np.random.default_rng(100 + index)
        own = Sender(From(service, f"{index}"), new_origin(f"{index}"))
        fresh = Sender(own_drafters[index], new_origin("fresh"))
        texts = [Text(tag, prompt(rng, int(rng.integers(4, 40)))) for tag in range(3)]
        for turn in range(25):
            now = [each for each in texts if rng.random() < 0.7] or texts[:1]
            work = replace(own.work(now, 3), patience=0.005 if rng.random() < 0.2 else 0.0)
            reply = own._noted(now, service.draft(work, own.drafter.name))  # type: ignore[attr-defined]
            for each, seen in zip(now, reply.seen.tolist()):
                each.seen = each.seen if seen else None
            expected = fresh.send([Text(each.tag, list(each.tokens), each.sampling) for each in now], 3)
            for got, wanted, status in zip(rows_of(reply.trees), rows_of(expected.trees), reply.status.tolist()):
                if status == RowStatus.OK and got != wanted[: len(got)]:
                    problems.append(f"{index} {turn}: {got} {wanted}")
            for each in now:
                each.tokens += prompt(rng, int(rng.integers(1, 4)))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not problems
    drafter.check()


def test_who_waits_longer_than_it_is_remembered_is_served_all_the_same(folder: Path, serve: Serve) -> None:
    """A pass of many seconds, as of a process that was stopped: its sender has been silent, and has not gone."""
    held, rng, now = Held(neural(folder)), np.random.default_rng(12), [0.0]
    service = serve(held, now=lambda: now[0])
    one, two = senders(service, "a", "b")

    def comes_late() -> DraftReply:
        now[0] = GONE + 1
        return two.send([Text(1, prompt(rng, 12))], 2)

    answers = joined(held, service, lambda: one.send([Text(1, prompt(rng, 12))], 2), comes_late)
    assert all(isinstance(each, DraftReply) for each in answers)
    assert len(service._accounts) == 2


def test_idle_time_grows_until_a_call_comes(folder: Path, serve: Serve) -> None:
    held, rng, now = Held(neural(folder)), np.random.default_rng(12), [0.0]
    service = serve(held, now=lambda: now[0])

    def idle() -> float:
        return sum(value for name, _, value in service.counters() if name == "covey_draft_idle_seconds_total")

    now[0] = 5.0
    assert idle() == 5.0
    begun = later(lambda: senders(service, "a")[0].send([Text(1, prompt(rng, 12))], 2))
    held.inside.wait(10)
    now[0] = 9.0
    assert idle() == 5.0
    held.gate.set()
    answer(begun)
    now[0] = 12.0
    assert idle() == 8.0


def test_an_answer_that_cannot_be_sent_is_nothing_to_the_next_call(folder: Path, serve: Serve) -> None:
    def lost(_answer: object) -> None:
        raise RuntimeError("shared memory is full")

    service, rng = serve(neural(folder)), np.random.default_rng(13)
    (sender,) = senders(service, "a")
    service.submit(sender.work([Text(1, prompt(rng, 12))], 2), "a", lost)
    assert answer(later(lambda: sender.send([Text(2, prompt(rng, 12))], 2))).status.tolist() == [RowStatus.OK]


def test_who_sends_more_calls_than_anyone_needs_is_answered_at_once(folder: Path, serve: Serve) -> None:
    held, rng = Held(neural(folder)), np.random.default_rng(14)
    service = serve(held)
    flood, text = Sender(None, new_origin("flood")), Text(1, prompt(rng, 12))  # type: ignore[arg-type]
    answers: list[Any] = []
    for _ in range(100):
        service.submit(flood.work([text], 2), "flood", answers.append)
    assert len(service._queue) <= MOST_WAITING
    assert all(isinstance(each, PortError) for each in answers)
    assert len(answers) >= 100 - MOST_WAITING - 1
    held.gate.set()


@pytest.mark.parametrize("names", [1, 40])
def test_neither_texts_nor_names_without_end_take_anothers_tags(folder: Path, serve: Serve, names: int) -> None:
    drafter, rng = neural(folder, blocks=24), np.random.default_rng(16)
    service = serve(drafter)
    auth = Authenticator(17, [CallingServer("modest", 1), CallingServer("greedy", 2)])
    modest = Sender(From(service, "modest"), auth.origin("modest", new_origin("modest")))
    mine = [Text(tag, prompt(rng, 30)) for tag in (1, 2)]
    modest.send(mine, 2)
    greedy = [Sender(From(service, "greedy"), auth.origin("greedy", new_origin(f"greedy {n}"))) for n in range(names)]
    for index in range(40):
        greedy[index % names].send([Text(index, prompt(rng, 30))], 2)
    reply = modest.send(mine, 2)
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.OK]
    assert reply.catch_up_seconds == 0.0, "its keys are still there"
    drafter.check()
