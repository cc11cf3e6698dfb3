"""A token's logits are the same bits whatever else is in the pass: batches, chunks, drafts, trees, pool layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, Reader, build, prompts

from covey.runtime.model import PagedModel
from covey.types import Ints

BUNDLED = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


def check(model: PagedModel, rows: Sequence[Ints], passes: int, seed: int) -> None:
    """Every token alone, decoded one by one; then random passes must reproduce those logits."""
    rng = np.random.default_rng(seed)
    single = Reader(model, rows, seed)
    alone = [torch.cat([single.read([(n, at, at + 1)])[0] for at in range(len(row))]) for n, row in enumerate(rows)]
    reader = Reader(model, rows, seed + 1)  # another layout
    done = [0] * len(rows)
    for _ in range(passes):
        steps = []
        for n, row in enumerate(rows):
            if rng.random() < 0.75:
                start = int(rng.integers(max(0, done[n] - 6), done[n] + 1)) if rng.random() < 0.5 else done[n]
                start = min(start, len(row) - 1)
                size = int(rng.choice([1, 1, 2, 5, 9, 33, 100]))
                steps.append((n, start, min(start + size, len(row))))
                done[n] = max(done[n], steps[-1][2])
        if not steps:
            continue
        rng.shuffle(steps)
        for (n, start, stop), found in zip(steps, reader.read([(int(a), int(b), int(c)) for a, b, c in steps])):
            assert found.equal(alone[n][start:stop]), f"row {n}, positions {start} to {stop}"
        if min(d - len(row) for d, row in zip(done, rows)) == 0:
            done = [0] * len(rows)


def check_tree(model: PagedModel, row: Ints, seed: int) -> None:
    """Each node of a random tree has the logits of its path decoded as a chain."""
    rng = np.random.default_rng(seed)
    base, size = len(row), 12
    tokens = rng.integers(2, model.vocab_size, size).astype(np.int32)
    parents = np.array([int(rng.integers(-1, node)) for node in range(size)], np.int32)
    reader = Reader(model, [row], seed, room=size)
    reader.read([(0, 0, base)])
    taken = set(reader.slots(0, 0, base).tolist())
    free = [slot for slot in range(model.blocks * model.block_size) if slot not in taken]
    found = [
        reader.tree(0, base, tokens, parents, rng.permutation(free)[:size].astype(np.int32), paths)
        for paths in (True, False)
    ]
    assert found[0].equal(found[1])
    for node in range(size):
        path, at = [], node
        while at >= 0:
            path, at = [int(tokens[at]), *path], int(parents[at])
        chain = Reader(model, [np.append(row, path).astype(np.int32)], seed)
        chain.read([(0, 0, base)])
        (logits,) = chain.read([(0, base, base + len(path))])
        assert found[0][node].equal(logits[-1])


@pytest.fixture(autouse=True, scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bundled(threads: int, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    folder = build(tmp_path_factory.mktemp(f"bundled{threads}"), "llama", torch.bfloat16, **BUNDLED)
    return PagedModel(folder, device="cpu", dtype="bfloat16", blocks=400, numerics="auto")


def test_bundled_shape_is_invariant(bundled: PagedModel) -> None:
    if bundled.numerics != "invariant":
        pytest.skip("bfloat16 is not invariant on this machine")
    rows = prompts(np.random.default_rng(4), 4096, 40, 33, 7, 70)
    check(bundled, rows, 14, 4)
    check_tree(bundled, rows[3], 4)


COVERING = [(family, "bfloat16") for family in FAMILIES] + [("llama", "float32"), ("gemma2", "float32")]


@pytest.mark.parametrize(("family", "dtype"), COVERING)
def test_families_are_invariant(family: str, dtype: str, tmp_path: Path) -> None:
    folder = build(tmp_path, family)
    model = PagedModel(folder, dtype=dtype, device="cpu", blocks=90, block_size=4, max_pass_tokens=200)
    if model.numerics != "invariant":
        pytest.skip(f"{dtype} is not invariant on this machine")
    rows = prompts(np.random.default_rng(6), 97, 30, 9, 41)
    check(model, rows, 25, 6)
    check_tree(model, rows[0], 6)


@pytest.mark.slow
def test_bundled_shape_is_invariant_in_many_passes(bundled: PagedModel) -> None:
    if bundled.numerics != "invariant":
        pytest.skip("bfloat16 is not invariant on this machine")
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = prompts(rng, 4096, *rng.integers(1, 300, 12).tolist())
        check(bundled, rows, 60, seed)
        check_tree(bundled, rows[0], seed)
