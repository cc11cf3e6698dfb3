from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from covey.errors import SettingError
from covey.profile import DrafterSettings, Profile
from covey.runtime.drafters import load_drafter
from covey.runtime.drafters.choosing import least_kept
from covey.runtime.drafters.fused_stepper import FusedStepper
from covey.runtime.drafters.neural import NeuralDrafter
from covey.runtime.drafters.paged_stepper import PagedStepper
from covey.runtime.noise import Purpose, keys, race, seed_words
from covey.runtime.sampling import SettingsTable, draw
from covey.runtime.truncation import find_cuts
from covey.types import RowStatus, Rule, Sampling
from tests.runtime.drafters.drafting import Sender, Text, paths_of, rows_of
from tests.runtime.tiny_models import build

VOCAB = 97
TINY = DrafterSettings(dtype="float32", kv_blocks=256, block_size=8)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        tmp_path_factory.mktemp("models") / "llama", "llama", num_hidden_layers=1, max_position_embeddings=1024
    )


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "deep", "llama", num_hidden_layers=2, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "gemma", "gemma3", num_hidden_layers=2)


class Reference:
    """The model by transformers, whole texts at a time."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )

    def logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = self._model(torch.tensor([tokens])).logits[0, -1:].float()
        return found

    def raced(self, tokens: list[int], sampling: Sampling) -> npt.NDArray[np.float64]:
        """logits / temperature + noise of the next position."""
        logits = self.logits(tokens)
        if sampling.greedy:
            return logits[0].double().numpy()
        best = logits.max(1)
        row_keys = keys(seed_words(np.array([sampling.seed], np.uint64)), np.array([len(tokens)]), Purpose.COUPLED)
        leaders = (best.indices.numpy()[:, None], best.values.double().numpy()[:, None])
        entrants = race(logits, *leaders, np.array([sampling.temperature]), row_keys, prune=False)
        found = np.full(VOCAB, -np.inf)
        found[entrants.tokens] = entrants.scores
        return found

    def chain(self, tokens: list[int], depth: int, sampling: Sampling) -> list[int]:
        path: list[int] = []
        for _ in range(depth):
            path.append(int(self.raced(tokens + path, sampling).argmax()))
        return path

    def drawn(self, tokens: list[int], depth: int, sampling: Sampling) -> list[int]:
        """What a target of the same weights draws."""
        table = SettingsTable()
        slot = table.add(sampling, len(tokens))
        path: list[int] = []
        for _ in range(depth):
            at = np.array([len(tokens) + len(path)], np.int32)
            path.append(int(draw(self.logits(tokens + path), table, np.array([slot], np.int32), at).tokens[0]))
        return path

    def beam(self, tokens: list[int], depth: int, width: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
        """Path to score of all nodes of a beam search."""
        found: dict[tuple[int, ...], float] = {}
        level: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in range(depth):
            children = []
            for score, path in level:
                raced = self.raced(tokens + list(path), sampling)
                raced = raced - raced.max() - np.log(np.exp(raced - raced.max()).sum())
                children += [(score + gain, (*path, token)) for token, gain in enumerate(raced.tolist())]
            level = sorted(children, key=lambda item: -item[0])[:width]
            found |= {path: score for score, path in level}
        return found


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def load(folder: Path, **changes: object) -> NeuralDrafter:
    from dataclasses import replace

    return NeuralDrafter.load(folder, replace(TINY, **changes), name="draft")  # type: ignore[arg-type]


def text(rng: np.random.Generator, length: int) -> list[int]:
    return [int(token) for token in rng.integers(2, VOCAB, length)]


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=0.7, seed=12),
    Sampling(temperature=1.3, top_k=5, seed=13),
    Sampling(temperature=0.9, top_p=0.6, seed=14),
    Sampling(temperature=1.0, top_k=20, top_p=0.8, min_p=0.02, seed=15),
]


@pytest.mark.parametrize("layers", ["folder", "deep"])
def test_chains_are_what_the_model_draws(layers: str, request: pytest.FixtureRequest) -> None:
    """A drafter with the target's weights proposes the target's own draws, whatever the settings and the batch."""
    where = request.getfixturevalue(layers)
    reference, rng = Reference(where), np.random.default_rng(1)
    texts = [Text(i, text(rng, int(rng.integers(1, 60))), sampling) for i, sampling in enumerate(SAMPLINGS)]
    drafter = load(where)
    assert isinstance(drafter._stepper, FusedStepper)
    sender = Sender(drafter)
    expected = [reference.drawn(item.tokens, 8, item.sampling) for item in texts]
    reply = sender.send(texts, [8, 3, 6, 1, 8, 5])
    assert rows_of(reply.trees) == [path[:depth] for path, depth in zip(expected, [8, 3, 6, 1, 8, 5])]
    alone = [rows_of(Sender(load(where)).send([Text(9, item.tokens, item.sampling)], 8).trees)[0] for item in texts]
    assert alone == expected
    drafter.check()


def test_the_whole_chain_is_accepted_round_after_round(folder: Path, reference: Reference) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    item = Text(1, text(np.random.default_rng(2), 12), sampling)
    own = reference.drawn(item.tokens, 60, sampling)
    sender = Sender(load(folder))
    for _ in range(10):
        proposed = rows_of(sender.send([item], 5).trees)[0]
        done = len(item.tokens) - item.num_prompt
        assert proposed == own[done : done + 5]
        item.tokens += own[done : done + 6]


def test_scores_fall_along_every_path(folder: Path) -> None:
    rng = np.random.default_rng(5)
    texts = [Text(i, text(rng, 20), sampling) for i, sampling in enumerate(SAMPLINGS)]
    trees = Sender(load(folder)).send(texts, 5, [1, 2, 3, 4, 1, 8]).trees
    for row in range(trees.rows):
        start, end = trees.offsets[row], trees.offsets[row + 1]
        scores, parents = trees.scores[start:end], trees.parents[start:end]
        assert (parents < np.arange(end - start)).all()
        above = np.where(parents >= 0, scores[parents], 0.0)
        assert (scores < above).all()


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=["greedy", "t1", "t0.7"])
def test_trees_are_beam_search(folder: Path, reference: Reference, width: int, sampling: Sampling) -> None:
    rng = np.random.default_rng(width)
    texts = [Text(i, text(rng, length), sampling) for i, length in enumerate([9, 23])]
    trees = Sender(load(folder)).send(texts, [4, 3], width).trees
    for row, item in enumerate(texts):
        expected = reference.beam(item.tokens, [4, 3][row], width, sampling)
        found = paths_of(trees, row)
        assert {tuple(path) for path in found} == set(expected)
        scores = trees.scores[trees.offsets[row] : trees.offsets[row + 1]]
        assert np.allclose(scores, [expected[tuple(path)] for path in found], atol=1e-3)


@pytest.mark.parametrize(
    "sampling", [*SAMPLINGS[3:], Sampling(temperature=2.0, top_p=0.999), Sampling(temperature=1, top_k=200)]
)
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_cuts_are_the_targets_own_up_to_rounding(sampling: Sampling, spread: float) -> None:
    logits = (np.random.default_rng(4).normal(size=(5, 1000)) * spread).astype(np.float32)
    table = SettingsTable()
    slots = np.full(5, table.add(sampling, 1), np.int64)
    cuts = find_cuts(torch.from_numpy(logits), logits.max(axis=1).astype(np.float64), table, slots)
    kept = cuts.mask(torch.from_numpy(logits)).numpy()
    found = logits >= least_kept(logits, table, slots)[:, None]
    assert (kept ^ found).sum(axis=1).max() <= 1  # float32 sums may take one token more or less


def test_truncation_leaves_tokens_out_of_trees(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(3), 9), Sampling(temperature=1.0, top_k=2, seed=1))
    trees = Sender(load(folder)).send([item], 3, 4).trees
    below = [sum(1 for parent in trees.parents if parent == node) for node in range(-1, len(trees.tokens))]
    assert max(below) <= 2
    assert below[0] == 2


@pytest.mark.parametrize("kind", ["folder", "deep", "other"])
def test_deltas_rollback_and_gaps(kind: str, request: pytest.FixtureRequest) -> None:
    """Random histories: what is proposed is always what a drafter that reads everything anew proposes."""
    where = request.getfixturevalue(kind)
    rng = np.random.default_rng(6)
    drafter, fresh = load(where), load(where)
    assert isinstance(drafter._stepper, PagedStepper if kind == "other" else FusedStepper)
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
        again = Sender(fresh).send(anew, depth.tolist(), width)
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


@pytest.mark.parametrize("gap", [1, 2, 17, 100, 500])
def test_gaps_are_caught_up(folder: Path, reference: Reference, gap: int) -> None:
    rng = np.random.default_rng(gap)
    sender = Sender(load(folder, catch_up_tokens=4096))
    item, beside = Text(1, text(rng, 30)), Text(2, text(rng, 5))
    sender.send([item, beside], 4)
    item.tokens += text(rng, gap)
    reply = sender.send([item, beside], 4)
    assert rows_of(reply.trees)[0] == reference.chain(item.tokens, 4, item.sampling)
    assert rows_of(reply.trees)[1] == reference.chain(beside.tokens, 4, beside.sampling)


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
    drafter = load(folder, kv_blocks=11)  # 88 tokens
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
    drafter = load(folder, kv_blocks=6)
    texts = [Text(1, text(rng, 30)), Text(2, text(rng, 30)), Text(3, text(rng, 400))]
    reply = Sender(drafter).send(texts, 2)
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.SKIPPED, RowStatus.SKIPPED]
    drafter.check()


def test_texts_at_the_end_of_the_models_positions_are_skipped(other: Path) -> None:
    drafter = load(other)
    reply = Sender(drafter).send([Text(1, text(np.random.default_rng(0), 255))], 4)
    assert reply.status.tolist() == [RowStatus.SKIPPED]


def test_a_restarted_drafter_says_stale(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(0), 20))
    sender = Sender(load(folder))
    first = rows_of(sender.send([item], 3).trees)
    sender.drafter = load(folder)
    assert sender.send([item], 3).status.tolist() == [RowStatus.STALE]
    assert rows_of(sender.send([item], 3).trees) == first


def test_a_replay_gets_the_stored_answer(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(0), 20))
    sender = Sender(load(folder))
    sender.send([item], 3)
    item.tokens.append(5)
    work = sender.work([item], 3)
    reply = sender.drafter.draft(work)
    assert sender.drafter.draft(work) is reply


def test_freed_and_unknown_tags(folder: Path) -> None:
    drafter = load(folder)
    sender = Sender(drafter)
    item, beside = Text(1, [4, 5, 6]), Text(2, [7, 8, 9])
    sender.send([item, beside], 2)
    sender.send([beside], 2, frees=[1])
    assert sender.send([item], 2).status.tolist() == [RowStatus.STALE]
    beside.seen = 40
    beside.tokens = list(range(2, 42))
    assert sender.send([beside], 2).status.tolist() == [RowStatus.STALE]
    drafter.check()


def test_long_gaps_may_be_read_in_part(folder: Path) -> None:
    rng = np.random.default_rng(10)
    drafter = load(folder, sink_tokens=4, window_tokens=16)
    whole = load(folder)
    sender, item = Sender(drafter), Text(1, text(rng, 300))
    for turn in range(12):
        reply = sender.send([item, Text(2, text(rng, 3))], 4, 1 + turn % 3)
        assert (reply.status == RowStatus.OK).all()
        assert item.seen == len(item.tokens)
        drafter.check()
        item.tokens += text(rng, [1, 3, 200, 15][turn % 4])
        if turn == 7:
            item.seen = 310
    item = Text(3, text(rng, 18))  # no longer than what is read: as if nothing were left out
    assert rows_of(sender.send([item], 4).trees) == rows_of(Sender(whole).send([Text(3, item.tokens)], 4).trees)


def test_rejection_ships_what_it_drew_from(folder: Path, reference: Reference) -> None:
    sampling = Sampling(temperature=0.8, seed=5, rule=Rule.REJECTION)
    rng = np.random.default_rng(11)
    texts = [Text(1, text(rng, 14), sampling), Text(2, text(rng, 9), Sampling(temperature=1.0, seed=1))]
    reply = Sender(load(folder)).send(texts, 4, [3, 1], q_rows=True)
    trees = reply.trees
    assert trees.q_ids is not None
    assert trees.q_probs is not None
    assert trees.parents.tolist() == [-1, 0, 1, 2] * 2
    path: list[int] = []
    for node in range(4):
        logits = reference.logits(texts[0].tokens + path)[0].double() / 0.8
        top = logits.topk(16)
        q = torch.softmax(top.values, -1)
        order = np.argsort(trees.q_ids[node])
        assert trees.q_ids[node][order].tolist() == sorted(top.indices.tolist())
        assert np.allclose(np.sort(trees.q_probs[node]), np.sort(q.numpy()), atol=1e-4)
        assert trees.tokens[node] in trees.q_ids[node]
        path.append(int(trees.tokens[node]))
    assert rows_of(trees)[1] == reference.drawn(texts[1].tokens, 4, texts[1].sampling)


def test_another_round_draws_anew_under_rejection(folder: Path) -> None:
    sampling = Sampling(temperature=1.5, seed=5, rule=Rule.REJECTION)
    sender, item = Sender(load(folder)), Text(1, text(np.random.default_rng(12), 14), sampling)
    found = set()
    for item.rounds in range(8):
        found.add(tuple(rows_of(sender.send([item], 4).trees)[0]))
    assert len(found) > 4


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    target = build(tmp_path / "target", "llama", vocab_size=128)
    profile = Profile("test", drafter=TINY)
    with pytest.raises(SettingError, match=r"97 tokens.* 128"):
        load_drafter("neural", folder, target, profile, name="draft")
    assert load_drafter("ngram", folder, target, profile, name="draft").info().vocab_size == 128
    assert load_drafter("neural", folder, folder, profile, name="draft").info().vocab_size == VOCAB
    with pytest.raises(SettingError, match="neural, ngram, suffix"):
        load_drafter("psychic", folder, folder, profile, name="draft")


def test_bfloat16_takes_the_quick_forms(folder: Path) -> None:
    """One row runs on float32 copies and a head of bytes, many on bfloat16: nearly always the same proposals."""
    rng = np.random.default_rng(13)
    drafter = load(folder, dtype="bfloat16")
    texts = [Text(i, text(rng, 40)) for i in range(12)]
    together = rows_of(Sender(drafter).send(texts, 4).trees)
    alone = [rows_of(Sender(drafter).send([Text(50 + i, item.tokens)], 4).trees)[0] for i, item in enumerate(texts)]
    assert sum(a == b for a, b in zip(together, alone)) >= 8
