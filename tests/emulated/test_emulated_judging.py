"""Emulated drafters that read: their luck is the one that they draft with, and reading takes its time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covey.contracts.types import Open, Sampling, TargetWork, Trees
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from loadtest.simulation.virtual import VirtualClock
from tests.drafters.drafting import Sender, Text, hits_of, replayed, rows_of
from tests.planner.test_emulated import MODEL, table, text

PROMPT = [9, 20, 21, 22]


def drafter(clock: VirtualClock, rates: dict[str, tuple[float, ...]]) -> EmulatedDrafter:
    return EmulatedDrafter(table(), MODEL, clock, name="first", rates=rates)


def whole(count: int, tenant: str = "") -> Text:
    item = Text(1, PROMPT + text(PROMPT, count), Sampling(), tenant)
    item.num_prompt = len(PROMPT)
    return item


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_hits_replayed_as_rounds_are_what_drafting_gives(depth: int) -> None:
    rates = {"": (0.7,)}
    item = whole(400)
    _, judged = Sender(drafter(VirtualClock(), rates)).read([item], [len(PROMPT)])
    assert (judged.read.tolist(), judged.first.tolist()) == ([404], [4])
    assert sum(hits_of(judged)[0]) == pytest.approx(280, abs=30)
    sender, live, rounds = Sender(drafter(VirtualClock(), rates)), Text(1, list(PROMPT)), {}
    while len(live.tokens) < len(item.tokens):
        goal = item.tokens[len(live.tokens) :]
        chain = rows_of(sender.send([live], min(depth, len(goal))).trees)[0]
        same = next((at for at, (own, token) in enumerate(zip(chain, goal)) if own != token), len(chain))
        rounds[len(live.tokens) - len(PROMPT)] = same
        live.tokens += goal[: same + 1]
    assert replayed(hits_of(judged)[0], depth) == rounds


def test_reading_takes_the_time_of_switching_within_the_budget() -> None:
    clock = VirtualClock()
    sender, item = Sender(drafter(clock, {"": (0.5,)})), whole(100)
    whole_time, hits = 0.0, list[int]()
    for budget, read in ((0, 0), (60, 60), (60, 104), (60, 104)):
        started = clock.now()
        reply, judged = sender.read([item], [4 + len(hits)], budget)
        hits += hits_of(judged)[0]
        assert judged.read.tolist() == [read]
        assert clock.now() - started == pytest.approx(reply.catch_up_seconds)
        whole_time += reply.catch_up_seconds
    _, at_once = Sender(drafter(VirtualClock(), {"": (0.5,)})).read([whole(100)], [4])
    assert hits == hits_of(at_once)[0]
    assert whole_time == pytest.approx(2 * 0.002 + 1e-6 * 104)
    assert sender.send([item], 2).catch_up_seconds == 0.0


def test_of_prompts_it_knows_only_its_tenants() -> None:
    rates = {"code": (0.9, 0.7), "none": (0.0,)}
    said = {}
    for tenant in ("code", "none", "math"):
        _, judged = Sender(drafter(VirtualClock(), rates)).read([whole(5, tenant)], [1])
        said[tenant] = judged.prompt_tokens.tolist()[0], judged.prompt_log_q.tolist()[0]
    assert said["code"] == (3, pytest.approx(3 * math.log(0.8)))
    assert said["none"] == (3, pytest.approx(3 * math.log(1e-6)))
    assert said["math"] == (0, 0.0)


def test_a_prompts_first_token_goes_before_the_tenant() -> None:
    rates = {"@9": (1.0,), "code": (0.0,), "": (0.0,)}
    right, other = whole(20, "code"), whole(20, "code")
    other.tokens = [8, *PROMPT[1:], *text([8, *PROMPT[1:]], 20)]
    for item, hit in ((right, 1), (other, 0)):
        _, judged = Sender(drafter(VirtualClock(), rates)).read([item], [len(PROMPT)])
        assert hits_of(judged) == [[hit] * 20]


def test_block_divergence_is_the_share_of_positions_that_are_right_after_the_drafts_own() -> None:
    target = EmulatedTarget(table(), MODEL, VirtualClock(), blocks=9, block_size=16)
    known, one = np.array([4], np.int32), np.ones(1, np.int32)
    target.step(TargetWork(one, known, known, Trees.empty(1), (Open(1, np.array(PROMPT, np.int32), 4, Sampling()),)))
    so_far = PROMPT + text(PROMPT, 1)
    wrong = MODEL.next(MODEL.state(so_far)) + 1
    chain = [wrong, *text([*so_far, wrong], 2), 8]
    tree = Trees(np.array([0, 4]), np.array(chain, np.int32), np.arange(-1, 3, dtype=np.int32))
    reply = target.step(TargetWork(one, known + 1, one, tree, divergence=True))
    assert (reply.accepted.tolist(), reply.divergence.tolist()) == ([0], [0.5])
    plain = target.step(TargetWork(one, known + 2, one, Trees.empty(1), divergence=True))
    assert plain.divergence.tolist() == [-1.0]
