"""What neural drafters say of text that they read: whether their own draws are the tokens that stand there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.types import Hit, RowStatus, Rule, Sampling
from covey.drafters.judging import LEAST
from tests.drafters.drafting import Sender, Text, hits_of, rows_of
from tests.drafters.neural_reference import SAMPLINGS, VOCAB, Reference, load, text

PENALISED = Sampling(temperature=1.0, repetition_penalty=1.5, min_tokens=9, end_ids=(1,), logprobs=True, seed=16)
BIASED = Sampling(temperature=1.0, logit_bias=((3, 4.0), (7, -100.0), (20, 3.0)), seed=18)
REJECTION = Sampling(temperature=1.0, rule=Rule.REJECTION, seed=17)


def partly_right(
    folder: Path, rng: np.random.Generator, samplings: Sequence[Sampling], length: int
) -> tuple[list[Text], list[list[int]]]:
    """A text of each sampling whose tokens are often what the drafter proposes there, and where they are."""
    items, hits = (
        [Text(tag, text(rng, 12), each) for tag, each in enumerate(samplings)],
        [list[int]() for _ in samplings],
    )
    sender = Sender(load(folder))
    for _ in range(length):
        for item, found, (proposed,) in zip(items, hits, rows_of(sender.send(items, 1).trees)):
            item.tokens.append(proposed if rng.random() < 0.7 else int(rng.integers(VOCAB)))
            found.append(int(item.tokens[-1] == proposed))
    texts = [Text(item.tag, item.tokens, item.sampling) for item in items]
    for item in texts:
        item.num_prompt = 12
    return texts, hits


@pytest.mark.parametrize("kind", ["deep", "other", pytest.param("folder", marks=pytest.mark.slow)])
def test_a_hit_is_where_it_would_have_proposed_the_token(kind: str, request: pytest.FixtureRequest) -> None:
    where = request.getfixturevalue(kind)
    samplings = [*SAMPLINGS, PENALISED, BIASED]
    items, expected = partly_right(where, np.random.default_rng(3), samplings, 40)
    drafter = load(where)
    reply, judged = Sender(drafter).read(items, [0] * len(items))
    drafter.check()
    assert (reply.status == RowStatus.OK).all()
    assert (judged.read.tolist(), judged.first.tolist()) == ([52] * len(items), [12] * len(items))
    for found, wanted, sampling in zip(hits_of(judged), expected, samplings):
        assert found == wanted, sampling
        assert 0 < sum(found) < 40


def test_in_pieces_as_at_once(folder: Path, reference: Reference) -> None:
    rng = np.random.default_rng(4)
    items, _ = partly_right(folder, rng, SAMPLINGS[:4], 50)
    _, whole = Sender(load(folder)).read(items, [4] * 4)
    drafter = load(folder)
    sender, told = Sender(drafter), [Text(item.tag, item.tokens[:20], item.sampling) for item in items]
    judge, hits, log_q, count = [4] * 4, [list[int]() for _ in items], np.zeros(4), np.zeros(4)
    for item in told:
        item.num_prompt = 12
    for _ in range(1000):
        budget = int(rng.integers(1, 40))
        before = np.asarray([each.sequence.num_cached_tokens for each in drafter._ledger.states()] or [0] * 4)
        _, judged = sender.read(told, judge, budget)
        drafter.check()
        now = np.asarray([each.sequence.num_cached_tokens for each in drafter._ledger.states()])
        assert (now - before).sum() <= budget
        assert judged.read.tolist() == now.tolist()
        for row, found in enumerate(hits_of(judged)):
            if found:
                assert judged.first[row] == max(judge[row], 12)
                judge[row] = int(judged.first[row]) + len(found)
            hits[row] += found
        log_q, count = log_q + judged.prompt_log_q, count + judged.prompt_tokens
        judge = [max(each, min(12, int(read) + 1)) for each, read in zip(judge, judged.read)]
        if all(len(item.tokens) == 62 for item in told) and (judged.read == 62).all():
            break
        for item, full in zip(told, items):
            item.tokens = full.tokens[: len(item.tokens) + int(rng.integers(4))]
    assert hits == hits_of(whole)
    assert count.tolist() == whole.prompt_tokens.tolist() == [8] * 4
    np.testing.assert_allclose(log_q, whole.prompt_log_q, rtol=1e-4)
    for item, found in zip(items, whole.prompt_log_q):
        each = [reference.logits(item.tokens[:at]).log_softmax(1)[0, item.tokens[at]].item() for at in range(4, 12)]
        assert found == pytest.approx(sum(each), rel=1e-4)
        assert min(each) > LEAST


@pytest.mark.parametrize("kind", ["folder", "other"])
def test_reads_between_drafts_change_no_proposal(kind: str, request: pytest.FixtureRequest) -> None:
    """And what was proposed counts as drawn: nothing behind it is left out."""
    where = request.getfixturevalue(kind)
    rng = np.random.default_rng(5)
    reads, plain = load(where, catch_up_tokens=4096), load(where, catch_up_tokens=4096)
    senders = Sender(reads), Sender(plain)
    texts = [Text(i, text(rng, 6), Sampling(temperature=1.0, seed=i) if i % 2 else Sampling()) for i in range(4)]
    again = [Text(item.tag, item.tokens, item.sampling) for item in texts]
    judge = [6] * 4
    joined = 0
    for turn in range(12 if kind == "other" else 30):
        if turn % 3:
            _, judged = senders[0].read(texts, judge, int(rng.integers(1, 60)))
            reads.check()
            for row, hits in enumerate(hits_of(judged)):
                end = int(judged.first[row]) + len(hits)
                assert end == min(judged.read[row] + 1, len(texts[row].tokens)) or not hits
                joined += bool(hits) and judged.first[row] == judge[row]
                judge[row] = max(judge[row], end)
            if turn % 3 == 1:
                continue
        width, depth = (1 if turn % 2 else 3), int(rng.integers(1, 6))
        trees = senders[0].send(texts, depth, width).trees
        expected = senders[1].send(again, depth, width).trees
        assert trees.tokens.tolist() == expected.tokens.tolist()
        assert trees.parents.tolist() == expected.parents.tolist()
        for row, (item, other) in enumerate(zip(texts, again)):
            judge[row] = len(item.tokens)  # from where it has just proposed
            path = rows_of(trees)[row][: int(rng.integers(1 if width > 1 else depth + 1))]
            item.tokens = other.tokens = [*item.tokens, *path, *text(rng, int(rng.integers(1, 6)))]
            if rng.random() < 0.1:
                item.seen = other.seen = known = judge[row] - 2
                item.tokens = other.tokens = [*item.tokens[:known], *text(rng, 3)]
    assert joined > 12


def test_the_proposals_of_a_chain_are_judged_without_reading_again(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(6), 20))
    sender = Sender(load(folder))
    chain = rows_of(sender.send([item], 4).trees)[0]
    item.tokens += [*chain[:2], (chain[2] + 1) % VOCAB]
    _, judged = sender.read([item], [20], 0)
    assert (judged.first.tolist(), hits_of(judged)) == ([20], [[Hit.HIT, Hit.HIT, Hit.MISS]])
    assert judged.read.tolist() == [22]
    item.tokens.append(5)
    _, judged = sender.read([item], [23])
    assert (judged.first.tolist(), len(judged.hits)) == ([23], 1)


def test_text_that_was_read_without_being_judged_is_left_out(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(7), 30))
    item.num_prompt = 10
    sender = Sender(load(folder))
    _, judged = sender.read([item], [-1])
    assert (judged.first.tolist(), hits_of(judged), judged.read.tolist()) == ([30], [[]], [30])
    item.tokens += text(np.random.default_rng(8), 10)
    _, judged = sender.read([item], [10])
    assert (judged.first.tolist(), len(judged.hits)) == ([31], 9)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "sampled"])
def test_texts_of_any_length_are_judged_to_their_end(folder: Path, sampling: Sampling) -> None:
    sender, rng, item = Sender(load(folder)), np.random.default_rng(13), Text(1, [5, 6, 7], sampling)
    for count in (61, 3, 64, 128, 1):
        start = len(item.tokens)
        item.tokens += text(rng, count)
        _, judged = sender.read([item], [start])
        assert len(judged.hits) == count
        assert judged.first.tolist() == [start]


def test_of_rows_of_the_rejection_rule_only_prompts_are_judged(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(9), 30), REJECTION)
    item.num_prompt = 10
    sender = Sender(load(folder))
    _, judged = sender.read([item], [4])
    assert (judged.read.tolist(), judged.prompt_tokens.tolist(), hits_of(judged)) == ([30], [6], [[]])
    anew = Sender(load(folder)).send([Text(1, item.tokens, REJECTION)], 3)
    proposed = sender.send([item], 3).trees
    assert rows_of(proposed) == rows_of(anew.trees)
    item.tokens += [*rows_of(proposed)[0], 7]
    _, judged = sender.read([item], [30])
    assert (judged.read.tolist(), hits_of(judged)) == ([34], [[]])


def test_unknown_evicted_and_restarted(folder: Path) -> None:
    rng = np.random.default_rng(10)
    drafter = load(folder, kv_blocks=2)  # of 32 tokens
    sender = Sender(drafter)
    texts = [Text(i, text(rng, 30)) for i in range(3)]
    for item in texts:
        item.num_prompt = 10
        sender.read([item], [0])
    drafter.check()
    reply, judged = sender.read([texts[2], texts[0]], [0, 0])
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.STALE]
    assert (judged.read.tolist(), judged.first.tolist()) == ([30, 0], [30, 0])
    reply, judged = sender.read([texts[0]], [0])
    assert reply.status.tolist() == [RowStatus.OK]
    assert (judged.first.tolist(), len(judged.hits)) == ([10], 20)
    sender.drafter = load(folder)
    assert sender.read([texts[0]], [0])[0].status.tolist() == [RowStatus.STALE]
    reply, judged = sender.read([texts[0], Text(7, text(rng, 1025))], [0, 0])
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.SKIPPED]  # more than the model has positions
    assert judged.read.tolist() == [30, 0]


def test_the_first_rows_are_read_first(folder: Path) -> None:
    rng = np.random.default_rng(11)
    sender, texts = Sender(load(folder)), [Text(i, text(rng, 30)) for i in range(3)]
    reads = [sender.read(texts, [-1] * 3, budget)[1].read.tolist() for budget in (0, 40, 40, 40)]
    assert reads == [[0, 0, 0], [30, 10, 0], [30, 30, 20], [30, 30, 30]]
