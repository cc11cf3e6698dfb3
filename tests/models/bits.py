"""What must hold where numerics are invariant: a token's logits are the same bits whatever else is in the pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from covey.contracts.types import Ints
from covey.gpu.model import DeviceModel
from covey.models.model import PagedModel
from covey.models.native.model import NativeModel
from tests.models.tiny_models import Reader


def check(model: PagedModel | DeviceModel | NativeModel, rows: Sequence[Ints], passes: int, seed: int) -> None:
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


def check_tree(model: PagedModel | DeviceModel | NativeModel, row: Ints, seed: int, nodes: int = 12) -> None:
    """Each node of a random tree has the logits of its path decoded as a chain."""
    rng = np.random.default_rng(seed)
    base, size = len(row), nodes
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
