from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import RowStatus, Rule, Sampling
from covey.drafters.lookup import LookupDrafter
from covey.drafters.ngram import NgramDrafter
from covey.drafters.suffix import LONGEST, SuffixDrafter
from tests.drafters.drafting import Sender, Text, paths_of, rows_of

SETTINGS = DrafterSettings(ngram_max=4, suffix_store_tokens=400)


def ngram() -> NgramDrafter:
    return NgramDrafter(SETTINGS, name="ngram", vocab_size=0)


def suffix(store: int = 400) -> SuffixDrafter:
    return SuffixDrafter(replace(SETTINGS, suffix_store_tokens=store), name="suffix", vocab_size=0)


def followers(text: list[int], run: list[int]) -> list[int]:
    """Every token that stands behind `run` in `text`, first to last."""
    size = len(run)
    return [text[i + size] for i in range(len(text) - size) if text[i : i + size] == run]


def brute_ngram(text: list[int], depth: int) -> list[int]:
    path: list[int] = []
    for _ in range(depth):
        whole = text + path
        for size in range(SETTINGS.ngram_max, 0, -1):
            found = followers(text, whole[-size:]) if len(whole) >= size else []
            if found:
                counts = Counter(found)
                path.append(
                    max(counts, key=lambda token: (counts[token], max(i for i, t in enumerate(found) if t == token)))
                )
                break
        else:
            break
    return path


def brute_suffix(text: list[int], others: list[list[int]], context: list[int]) -> Counter[int]:
    """What follows the longest suffix of `context` that anything follows anywhere."""
    for size in range(len(context), 0, -1):
        found = [token for known in (text, *others) for token in followers(known, context[-size:])]
        if found:
            return Counter(found)
    return Counter()


def brute_followers(text: list[int], others: list[list[int]]) -> set[int]:
    """All that follows any suffix of `text` anywhere."""
    return {token for known in (text, *others) for token in followers(known, text[-1:])}


def noisy_text(rng: np.random.Generator, length: int, vocab: int = 6) -> list[int]:
    """Random, with repeats."""
    text = [int(token) for token in rng.integers(2, 2 + vocab, 12)]
    while len(text) < length:
        start = int(rng.integers(len(text) - 6))
        text += text[start : start + int(rng.integers(1, 7))]
        if rng.random() < 0.4:
            text.append(int(rng.integers(2, 2 + vocab)))
    return text[:length]


@pytest.mark.parametrize("seed", range(6))
def test_ngram_chains_equal_a_search_by_hand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = noisy_text(rng, 150)
    sender, item = Sender(ngram()), Text(1, text[:20])
    while len(item.tokens) < len(text):
        assert rows_of(sender.send([item], 5).trees) == [brute_ngram(item.tokens, 5)]
        if rng.random() < 0.2:
            item.seen = int(rng.integers(1, len(item.tokens)))
        item.tokens = text[: len(item.tokens) + int(rng.integers(1, 9))]


@pytest.mark.parametrize("seed", range(4))
def test_suffix_children_are_those_of_the_longest_known_suffix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafter = suffix(100000)
    sender = Sender(drafter)
    before = [noisy_text(rng, 50) for _ in range(3)]
    for tag, output in enumerate(before):
        old = Text(tag, [90 + tag])
        sender.send([old], 0)
        old.tokens += output
        sender.send([old], 0)
    text = noisy_text(rng, 80)
    item = Text(50, text[:10])
    sender.send([item], 1, frees=range(3))
    while len(item.tokens) < len(text):
        item.tokens = text[: len(item.tokens) + int(rng.integers(1, 5))]
        trees = sender.send([item], 3).trees
        for path in paths_of(trees, 0):
            counts = brute_suffix(item.tokens, before, (item.tokens + path[:-1])[-LONGEST:])
            assert counts[path[-1]] == max(counts.values())
        wide = paths_of(sender.send([item], 1, 3).trees, 0)
        everything = brute_followers(item.tokens, before)
        assert len(wide) == min(3, len(everything))


def test_outputs_of_the_same_tenant_are_known_others_are_not() -> None:
    drafter = suffix()
    sender = Sender(drafter)
    output = [30, 31, 32, 33, 34, 35, 36]
    first = Text(1, [5, 6, 7], tenant="a")
    sender.send([first], 0)
    first.tokens += output
    sender.send([first], 0)
    second, stranger = Text(2, [8, 30, 31], tenant="a"), Text(3, [8, 30, 31], tenant="b")
    reply = sender.send([second, stranger], 4, frees=[1])
    assert rows_of(reply.trees) == [[32, 33, 34, 35], []]


@pytest.mark.parametrize("tenants", [1, 40])
def test_texts_and_tenants_of_long_ago_are_forgotten(tenants: int) -> None:
    """Who says a name of its own in each request would fill the memory."""
    sender = Sender(suffix(40))
    for tag in range(40):
        item = Text(tag, [1], tenant=f"t{tag % tenants}")
        sender.send([item], 0, frees=[tag - 1] if tag else [])
        item.tokens += [100 * tag + i for i in range(10)]
        sender.send([item], 0)
    probe = [Text(50, [2, 0, 1], tenant="t0"), Text(51, [2, 3800, 3801], tenant=f"t{38 % tenants}")]
    assert rows_of(sender.send(probe, 2, frees=[39]).trees) == [[], [3802, 3803]]


@pytest.mark.parametrize("make", [ngram, suffix])
def test_trees_hold_every_continuation_that_was_seen_and_the_rejection_rule_gets_chains(
    make: Callable[[], LookupDrafter],
) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]  # behind 3, 1, 2 comes 4; behind 1, 2 comes 3 more often
    texts = [Text(1, text), Text(2, text, Sampling(temperature=1.0, rule=Rule.REJECTION))]
    trees = Sender(make()).send(texts, 2, 3, q_rows=True).trees
    paths = paths_of(trees, 0)
    assert paths[:2] == [[4], [3]]
    assert [4, 1] in paths
    assert [3, 1] in paths
    assert (np.diff(trees.scores[:2]) < 0).all()
    for parent, score in zip(trees.parents, trees.scores[: len(paths)]):
        assert score < (trees.scores[parent] if parent >= 0 else 0.0)
    assert paths_of(trees, 1) == [[4], [4, 1]]


@pytest.mark.parametrize("make", [ngram, suffix])
def test_books_are_kept_as_for_any_drafter(make: Callable[[], LookupDrafter]) -> None:
    sender = Sender(make())
    item = Text(1, [1, 2, 3, 1, 2])
    work = sender.work([item], 2, q_rows=True)
    reply = sender.drafter.draft(work)
    assert reply.trees.q_ids is not None
    assert reply.trees.q_probs is not None
    assert reply.trees.q_ids[:, 0].tolist() == reply.trees.tokens.tolist() == [3, 1]
    assert reply.trees.q_probs[:, 0].tolist() == [1.0, 1.0]
    item.seen = 9
    item.tokens += [1, 1, 1, 1, 1]
    assert sender.send([item], 2).status.tolist() == [RowStatus.STALE]
    assert sender.send([item], 2).status.tolist() == [RowStatus.OK]


@pytest.mark.parametrize("make", [ngram, suffix])
def test_texts_that_are_told_in_pieces_change_no_proposal(make: Callable[[], LookupDrafter]) -> None:
    """A text that ends after it was told, and before any draft read it, serves others too."""
    tokens = noisy_text(np.random.default_rng(7), 200)
    told, plain = Sender(make()), Sender(make())
    items = [Text(1, tokens[:10], tenant="t"), Text(1, tokens[:10], tenant="t")]
    for length in range(12, 200, 4):
        for item in items:
            item.tokens = tokens[:length]
        assert rows_of(told.send([items[0]], 0).trees) == [[]]
        if length % 3 == 0:
            assert rows_of(told.send([items[0]], 4, 2).trees) == rows_of(plain.send([items[1]], 4, 2).trees)
    plain.send([items[1]], 1)
    for sender in (told, plain):
        sender.send([], 1, frees=[1])
    fresh = [Text(2, tokens[60:70], tenant="t") for _ in range(2)]
    assert rows_of(told.send([fresh[0]], 4).trees) == rows_of(plain.send([fresh[1]], 4).trees)
