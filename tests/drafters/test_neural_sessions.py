"""What neural drafters keep of each text, and for how long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.contracts.errors import SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import RowStatus, Sampling
from covey.drafters import load_drafter
from covey.models.model import PagedModel
from covey.models.native.model import NativeModel
from covey.wire.ledger import new_origin
from tests.drafters.drafting import Sender, Text, paths_of, rows_of
from tests.drafters.neural_reference import TINY, VOCAB, Reference, load, text
from tests.models.tiny_models import build


@pytest.mark.parametrize("kind", ["folder", "deep", "other"])
def test_deltas_rollback_and_gaps(kind: str, request: pytest.FixtureRequest) -> None:
    """Random histories: what is proposed is always what a drafter that reads everything anew proposes."""
    where = request.getfixturevalue(kind)
    rng = np.random.default_rng(6)
    drafter, fresh = load(where), load(where)
    assert isinstance(drafter._model, PagedModel if kind == "other" else NativeModel)
    sender = Sender(drafter)
    texts = [Text(i, text(rng, 6), Sampling(temperature=1.0, seed=i) if i % 2 else Sampling()) for i in range(4)]
    for turn in range(8 if kind == "other" else 24):
        now = [item for item in texts if rng.random() < 0.7] or texts
        width = int(rng.integers(1, 4))
        depth = rng.integers(1, 6, len(now))
        reply = sender.send(now, depth.tolist(), width)
        drafter.check()
        assert (reply.status == RowStatus.OK).all()
        anew = [Text(item.tag, item.tokens, item.sampling) for item in now]
        again = Sender(fresh, new_origin("again")).send(anew, depth.tolist(), width)
        assert np.array_equal(reply.trees.tokens, again.trees.tokens)
        assert np.array_equal(reply.trees.parents, again.trees.parents)
        for row, item in enumerate(now):
            choice = rng.random()
            paths = paths_of(reply.trees, row)
            if choice < 0.6:  # part of a path is accepted, then another token
                path = paths[int(rng.integers(len(paths)))]
                item.tokens += [*path[: int(rng.integers(len(path) + 1))], *text(rng, 1)]
            elif choice < 0.75:
                item.tokens += text(rng, int(rng.integers(1, 40)))
            elif choice < 0.9 and turn % 3 == 0:  # less than it holds stays valid
                assert item.seen is not None
                item.seen = int(rng.integers(2, item.seen + 1))
                item.tokens = item.tokens[: item.seen] + text(rng, 2)


def test_only_the_reading_of_missed_tokens_is_catching_up(folder: Path) -> None:
    rng = np.random.default_rng(15)
    sender, item = Sender(load(folder)), Text(1, text(rng, 200))
    assert sender.send([item], 4).catch_up_seconds > 0
    for _ in range(3):
        item.tokens += text(rng, 2)
        reply = sender.send([item], 4)
        assert reply.catch_up_seconds == 0.0
        assert reply.draft_seconds > 0


def test_depth_zero_only_catches_up(folder: Path, reference: Reference) -> None:
    item = Text(1, text(np.random.default_rng(1), 70))
    sender = Sender(load(folder))
    reply = sender.send([item], 0)
    assert reply.status.tolist() == [RowStatus.OK]
    assert not len(reply.trees.tokens)
    assert item.seen == 70
    assert rows_of(sender.send([item], 3).trees)[0] == reference.chain(item.tokens, 3, item.sampling)


def test_a_catch_up_beyond_the_budget_goes_on_with_the_next_call(folder: Path, reference: Reference) -> None:
    rng = np.random.default_rng(4)
    drafter = load(folder, catch_up_tokens=50)
    sender = Sender(drafter)
    texts = [Text(1, text(rng, 10)), Text(2, text(rng, 120)), Text(3, text(rng, 30))]
    reply = sender.send(texts, 2)
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.SKIPPED, RowStatus.SKIPPED]
    assert reply.seen.tolist() == [10, 120, 30]
    calls = 0
    while (reply := sender.send(texts, 2)).status.any():
        calls += 1
        assert calls < 5
    assert calls > 0
    assert rows_of(reply.trees) == [reference.chain(item.tokens, 2, item.sampling) for item in texts]
    drafter.check()


def test_under_pressure_the_least_recently_drafted_is_evicted(folder: Path, reference: Reference) -> None:
    rng = np.random.default_rng(8)
    drafter = load(folder, kv_blocks=2)  # of 32 tokens
    sender = Sender(drafter)
    texts = [Text(i, text(rng, 30)) for i in range(3)]
    for item in texts[:2]:
        assert rows_of(sender.send([item], 2).trees)[0] == reference.chain(item.tokens, 2, item.sampling)
    sender.send([texts[0]], 2)  # now the other is the oldest
    sender.send([texts[2]], 2)
    drafter.check()
    assert sender.send([texts[0]], 2).status.tolist() == [RowStatus.OK]
    assert sender.send([texts[1]], 2).status.tolist() == [RowStatus.STALE]
    reply = sender.send([texts[1]], 2)
    assert rows_of(reply.trees)[0] == reference.chain(texts[1].tokens, 2, texts[1].sampling)
    drafter.check()


def test_rows_without_room_are_skipped(folder: Path) -> None:
    rng = np.random.default_rng(9)
    drafter = load(folder, kv_blocks=1)
    texts = [Text(1, text(rng, 30)), Text(2, text(rng, 30)), Text(3, text(rng, 400))]
    reply = Sender(drafter).send(texts, 2)
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.SKIPPED, RowStatus.SKIPPED]
    drafter.check()


def test_texts_at_the_end_of_the_models_positions_are_skipped(other: Path) -> None:
    drafter = load(other)
    reply = Sender(drafter).send([Text(1, text(np.random.default_rng(0), 255))], 4)
    assert reply.status.tolist() == [RowStatus.SKIPPED]


@pytest.mark.parametrize("kind", ["folder", "other"])
@pytest.mark.parametrize("width", [1, 2])
def test_a_text_near_the_end_goes_beside_a_deeper_one(kind: str, width: int, request: pytest.FixtureRequest) -> None:
    where = request.getfixturevalue(kind)
    rng, drafter = np.random.default_rng(14), load(where, catch_up_tokens=4096)
    assert isinstance(drafter._model, PagedModel if kind == "other" else NativeModel)
    texts = [Text(1, text(rng, 9)), Text(2, text(rng, drafter.info().max_positions - 2))]
    reply = Sender(drafter).send(texts, [4, 1], width)
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.OK]
    for row, (item, depth) in enumerate(zip(texts, [4, 1])):
        alone = Sender(load(where, catch_up_tokens=4096)).send([Text(3, item.tokens)], depth, width)
        assert rows_of(alone.trees)[0] == rows_of(reply.trees)[row]


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    target = build(tmp_path / "target", "llama", vocab_size=128)
    profile = Profile("test", drafter=TINY)
    with pytest.raises(SettingError, match=r"97 tokens.* 128, and no tokenizers to compare"):
        load_drafter("neural", folder, target, profile, name="draft")
    assert load_drafter("ngram", folder, target, profile, name="draft").info().vocab_size == 128
    assert load_drafter("neural", folder, folder, profile, name="draft").info().vocab_size == VOCAB
    with pytest.raises(SettingError, match="neural, ngram, suffix"):
        load_drafter("psychic", folder, folder, profile, name="draft")
