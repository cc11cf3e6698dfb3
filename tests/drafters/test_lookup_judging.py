"""What lookups say of text that they read: what they would have proposed first at each place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from covey.contracts.types import Hit, RowStatus, Sampling
from covey.drafters.lookup import LookupDrafter
from tests.drafters.drafting import Sender, Text, hits_of, rows_of
from tests.drafters.test_lookup_drafters import ngram, noisy_text, suffix


def expected(make: Callable[[], LookupDrafter], tokens: list[int], start: int) -> list[int]:
    """By a drafter that is asked at every place."""
    hits = []
    sender, item = Sender(make()), Text(1, tokens[:start])
    for token in tokens[start:]:
        offered = rows_of(sender.send([item], 1).trees)[0]
        hits.append(Hit.NOTHING if not offered else Hit.HIT if offered == [token] else Hit.MISS)
        item.tokens.append(token)
    return hits


@pytest.mark.parametrize("make", [ngram, suffix])
@pytest.mark.parametrize("seed", range(3))
def test_hits_are_what_it_would_have_proposed(make: Callable[[], LookupDrafter], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = noisy_text(rng, 150, vocab=30)
    wanted = expected(make, tokens, 20)
    assert set(wanted) == set(Hit)
    item = Text(1, tokens)
    item.num_prompt = 20
    _, judged = Sender(make()).read([item], [0])
    assert (judged.read.tolist(), judged.first.tolist(), hits_of(judged)) == ([150], [20], [wanted])
    assert judged.prompt_tokens.tolist() == [0]

    sender, told, hits = Sender(make()), Text(2, tokens[:40]), list[int]()
    told.num_prompt = 20
    while len(hits) < 130:
        budget, before = int(rng.integers(1, 20)), 20 + len(hits)
        _, judged = sender.read([told], [before], budget)
        hits += hits_of(judged)[0]
        if len(hits_of(judged)[0]):
            assert judged.first.tolist() == [before]
            assert len(hits_of(judged)[0]) <= budget
        told.tokens = tokens[: len(told.tokens) + int(rng.integers(20))]
    assert hits == wanted


@pytest.mark.parametrize("make", [ngram, suffix])
def test_reads_change_no_proposal(make: Callable[[], LookupDrafter]) -> None:
    rng = np.random.default_rng(7)
    tokens = noisy_text(rng, 200)
    reads, plain = Sender(make()), Sender(make())
    items = [Text(1, tokens[:10], Sampling(), "t"), Text(1, tokens[:10], Sampling(), "t")]
    for length in range(12, 200, 4):
        reads.read([items[0]], [10], int(rng.integers(4)))
        for item in items:
            item.tokens = tokens[:length]
        if length == 100:
            items[0].seen = items[1].seen = 90
        if length % 3 == 0:
            assert rows_of(reads.send([items[0]], 4, 2).trees) == rows_of(plain.send([items[1]], 4, 2).trees)
    reads.read([items[0]], [10], 0)
    for sender in (reads, plain):  # what was told and not yet read is kept for others, too
        sender.send([], 1, frees=[1])
    fresh = [Text(2, tokens[60:70], Sampling(), "t") for _ in range(2)]
    assert rows_of(reads.send([fresh[0]], 4).trees) == rows_of(plain.send([fresh[1]], 4).trees)


@pytest.mark.parametrize("make", [ngram, suffix])
def test_what_is_read_without_being_judged(make: Callable[[], LookupDrafter]) -> None:
    tokens = noisy_text(np.random.default_rng(8), 60)
    whole, unjudged, drafted = Text(1, tokens), Text(2, tokens), Text(3, tokens[:40])
    for item in (whole, unjudged, drafted):
        item.num_prompt = 10
    sender = Sender(make())
    sender.send([drafted], 2)
    drafted.tokens = tokens
    unknown = Text(4, tokens, seen=30)
    reply, judged = sender.read([whole, unjudged, drafted, unknown], [10, -1, 10, 10])
    assert reply.status.tolist() == [RowStatus.OK] * 3 + [RowStatus.STALE]
    assert judged.read.tolist() == [60, 60, 60, 0]
    assert judged.first.tolist() == [10, 60, 40, 0]
    assert [len(each) for each in hits_of(judged)] == [50, 0, 20, 0]
