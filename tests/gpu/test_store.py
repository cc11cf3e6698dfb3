from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.gpu.kernels import INTERPRETED
from covey.gpu.kernels.layout import Layout
from covey.gpu.store import KVStore
from covey.kv.pool import BlockPool, chain_hashes
from tests.arrays import ints

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU")


def made(dtype: torch.dtype = torch.float32, **changes: int) -> KVStore:
    sizes = {"layers": 2, "kv_heads": 1, "head_dim": 3, "block_size": 4, "segment_blocks": 3, "most_segments": 4}
    sizes |= changes
    counts = {name: sizes.pop(name) for name in ("segments", "most_segments") if name in sizes}
    return KVStore(Layout(**sizes), **counts, dtype=dtype, device=DEVICE)


def block(store: KVStore, index: int) -> torch.Tensor:
    """[layers, heads, block_size, head_dim]; a view."""
    return store.segment(index // store.layout.segment_blocks)[:, index % store.layout.segment_blocks]


def test_grows_by_whole_segments_at_most_as_asked_and_allowed() -> None:
    store = made()
    offsets, pool = store.offsets.data_ptr(), store.pool.data_ptr()
    assert (store.blocks, store.grow(2), store.grow(0)) == (3, 0, 0)
    assert (store.grow(7), store.blocks) == (6, 9)
    assert (store.grow(100), store.blocks) == (3, 12)
    assert store.grow(3) == 0
    assert (store.offsets.data_ptr(), store.pool.data_ptr()) == (offsets, pool)
    assert not any(store.segment(index).any() for index in range(4))


def test_shrinks_by_whole_segments_and_never_the_first() -> None:
    store = made(segments=4)
    assert store.shrink(2) == 0
    assert (store.shrink(5), store.blocks) == (3, 9)
    assert store.offsets.tolist()[3] == 0
    assert (store.shrink(100), store.blocks) == (6, 3)
    assert store.offsets.tolist() == [0, 0, 0, 0]


def test_what_grows_again_is_zero() -> None:
    store = made(segments=2)
    store.segment(1).fill_(torch.nan)
    store.shrink(3)
    store.grow(3)
    assert not store.segment(1).any()


def test_growing_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    store = made()
    allocate = store._allocate
    left = [1]

    def sometimes() -> object:
        if not left:
            raise torch.OutOfMemoryError("full")
        left.pop()
        return allocate()

    monkeypatch.setattr(store, "_allocate", sometimes)
    assert store.grow(9) == 3
    assert "grows by only 3 of 9 blocks: full" in caplog.text
    assert store.blocks == 6


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_contents_survive_growing_moving_and_shrinking(seed: int) -> None:
    """As a server would: the pool says which blocks move, the store moves them, tables follow, memory goes back."""
    rng = random.Random(seed)
    store = made(torch.float64, head_dim=rng.choice([3, 8]))
    pool = BlockPool(store.blocks)
    tables: list[list[int]] = []
    held: list[torch.Tensor] = []
    known: dict[bytes, torch.Tensor] = {}
    for step in range(30):
        action = rng.randrange(4)
        if action == 0 and (taken := pool.take(rng.randrange(1, 4))) is not None:
            for index in taken:
                block(store, index).copy_(torch.randn(2, 2, 4, store.layout.head_dim, dtype=torch.float64))
            tables.append(taken)
            held.append(torch.stack([block(store, index) for index in taken]))
            keys = chain_hashes(np.full(4 * len(taken), step, np.int32), 4, "")
            for index, key, content in zip(taken, keys, held[-1]):
                pool.publish(index, key)
                known[key] = content.clone()
        elif action == 1 and tables:
            at = rng.randrange(len(tables))
            pool.release(tables.pop(at))
            held.pop(at)
        elif action == 2:
            pool.grow(store.grow(rng.randrange(8)))
        elif action == 3:
            segments = rng.randrange(1, store.blocks // store.layout.segment_blocks + 1)
            plan = pool.contract(segments * store.layout.segment_blocks)
            if plan is not None:
                store.move_blocks(ints(*plan[0]), ints(*plan[1]))
                renamed = dict(zip(*plan))
                tables = [[renamed.get(index, index) for index in table] for table in tables]
                store.shrink(store.blocks - pool.total)
        pool.check(tables)
        assert store.blocks == pool.total
        for table, content in zip(tables, held):
            assert torch.equal(torch.stack([block(store, index) for index in table]), content)
        for key, content in known.items():
            for index in pool.find([key]):
                assert torch.equal(block(store, index), content)


@on_gpu
def test_memory_goes_back_to_the_device() -> None:
    sizes = {"layers": 8, "kv_heads": 8, "head_dim": 128, "block_size": 16, "segment_blocks": 64}
    store = made(torch.bfloat16, **sizes, most_segments=8)
    store.shrink(store.grow(64))  # what is compiled and loaded at first use takes memory too
    before = torch.cuda.mem_get_info()[0]
    assert store.grow(7 * 64) == 7 * 64
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    assert 7 * store.segment_bytes <= taken < 7 * store.segment_bytes + (32 << 20)
    store.shrink(7 * 64)
    assert torch.cuda.mem_get_info()[0] >= before - (2 << 20)


@on_gpu
def test_a_captured_graph_sees_what_grew() -> None:
    from covey.gpu.kernels import moves

    store = made(torch.bfloat16, head_dim=64, segment_blocks=1024, most_segments=4)
    old, new = torch.tensor([0], device=DEVICE), torch.tensor([0], device=DEVICE)

    def move() -> None:
        moves.move_blocks(store.pool, store.offsets, old, new, store.layout)

    move()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        move()
    for _ in range(2):
        store.grow(2048)
        block(store, 5).normal_()
        old.fill_(5)
        new.fill_(3000)
        graph.replay()
        assert torch.equal(block(store, 3000), block(store, 5))
        store.shrink(2048)
