from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from covey.contracts.types import Ints
from covey.gpu.kernels import INTERPRETED
from covey.gpu.kernels.layout import Layout
from covey.gpu.store import KVStore
from tests.hopper import Variant, compile_for_hopper

MODULE = "covey.gpu.kernels.moves"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")

pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU")


def made(dtype: torch.dtype = torch.float32, **changes: int) -> tuple[KVStore, torch.Tensor]:
    """A store full of random bits, and the same as [layers, heads, slots, head_dim]."""
    sizes = {"layers": 3, "kv_heads": 2, "head_dim": 5, "block_size": 4, "segment_blocks": 3} | changes
    store = KVStore(Layout(**sizes), segments=4, most_segments=5, dtype=dtype, device=DEVICE)
    generator = torch.Generator().manual_seed(1)
    for index in range(store.blocks // store.layout.segment_blocks):
        memory = store.segment(index)
        memory.copy_(torch.randn(memory.shape, generator=generator).to(dtype))
        memory[0, 0, 0, 0] = torch.nan  # bits are copied, whatever they mean
    return store, contents(store)


def contents(store: KVStore) -> torch.Tensor:
    """[layers, heads, slots, head_dim], on the CPU."""
    count = store.blocks // store.layout.segment_blocks
    blocks = torch.cat([store.segment(index) for index in range(count)], 1)
    return blocks.transpose(1, 2).flatten(2, 3).cpu().clone()


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [5, 16])
def test_blocks_move_whole_and_nothing_else_changes(dtype: torch.dtype, head_dim: int) -> None:
    store, expected = made(dtype, head_dim=head_dim)
    order = np.random.default_rng(head_dim).permutation(store.blocks).astype(np.int32)
    old, new = order[:5], order[5:10]
    store.move_blocks(old, new)
    expected[:, :, slots_of(store, new)] = expected[:, :, slots_of(store, old)]
    assert same(contents(store), expected)


def test_a_block_larger_than_a_piece_moves_whole() -> None:
    store, expected = made(torch.float32, layers=2, kv_heads=3, head_dim=64, block_size=16, segment_blocks=2)
    store.move_blocks(np.array([5], np.int32), np.array([0], np.int32))
    expected[:, :, :16] = expected[:, :, 80:96]
    assert same(contents(store), expected)


def test_odd_blocks_need_no_alignment() -> None:
    store, expected = made(torch.float16, kv_heads=1, head_dim=3, block_size=1)
    store.move_blocks(np.array([11, 4], np.int32), np.array([1, 6], np.int32))
    expected[:, :, [1, 6]] = expected[:, :, [11, 4]]
    assert same(contents(store), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("head_dim", "count"), [(5, 1), (5, 48), (128, 40)])
def test_slots_are_all_read_before_any_is_written(dtype: torch.dtype, head_dim: int, count: int) -> None:
    store, expected = made(dtype, head_dim=head_dim)
    rng = np.random.default_rng(count)
    old = rng.integers(0, store.blocks * 4, count).astype(np.int32)  # one may go to several places
    new = rng.permutation(store.blocks * 4)[:count].astype(np.int32)
    store.copy_slots(old, new)
    expected[:, :, new] = expected[:, :, old]
    assert same(contents(store), expected)


def test_slots_are_cleared() -> None:
    store, expected = made(torch.bfloat16)
    slots = np.array([47, 0, 13], np.int32)
    store.clear_slots(slots)
    expected[:, :, slots] = 0
    assert same(contents(store), expected)


def slots_of(store: KVStore, blocks: Ints) -> Ints:
    return (blocks[:, None] * store.layout.block_size + np.arange(store.layout.block_size)).reshape(-1)


@pytest.mark.slow
def test_they_compile_to_accesses_of_16_bytes() -> None:
    blocks, slots = [], []
    for kind in ("*bf16", "*fp16"):
        constants: dict[str, Any] = {"SEGMENT_BLOCKS": 100, "BLOCK_STRIDE": 2 * 8 * 16 * 128, "PIECE": 4096}
        signature = {"pool": kind, "offsets": "*i64", "sources": "*i64", "destinations": "*i64"}
        blocks.append(Variant(MODULE, "_blocks_kernel", signature, constants))
    signature = {"pool": "*bf16", "offsets": "*i64", "slots": "*i64", "staged": "*bf16", "count": "i32"}
    for mode, dim in product(("gather", "scatter", "clear"), (128, 80)):
        constants = {"HEADS": 16, "SEGMENT_BLOCKS": 100, "BLOCK_SIZE": 16, "BLOCK_STRIDE": 256 * dim, "HEAD_DIM": dim}
        constants |= {"FIRST": 0, "TILE": 32, "WIDTH": 128, "MODE": mode}
        slots.append(Variant(MODULE, "_slots_kernel", signature, constants))
    for variant, compiled in zip(blocks + slots, compile_for_hopper(*blocks, *slots)):
        stores = [line for line in compiled.ptx.splitlines() if "st.global" in line]
        assert stores, variant
        assert all(".v4.b32" in line or ".v2.b64" in line for line in stores), (variant, stores)
        if variant.constants.get("MODE") != "clear":
            assert compiled.widest_load == 16, variant
