"""KV memory on a CPU that grows and shrinks where it is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.models.reserve import Reserve
from covey.process import footprint
from tests.waiting import until


def made(blocks: int, most: int, *, block: int = 128) -> Reserve:
    return Reserve(8, block, blocks=blocks, most=most)


def resident(pool: Reserve) -> int:
    """Bytes of it that are in memory, by the kernel's account of its mapping."""
    found, inside = 0, False
    start = pool.bytes.ctypes.data
    end = start + pool.bytes.nbytes
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-", line):
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            inside = start < high and low < end
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.sampled_from([8, 24, 128, 512]))
def test_what_stays_keeps_its_contents_and_what_comes_back_is_zero(sizes: list[int], block: int) -> None:
    pool = made(5, 200, block=block)
    place, shape = pool.bytes.ctypes.data, pool.bytes.shape
    expected = np.zeros((8, 200, block), np.uint8)
    pool.bytes[:, -1] = 7
    for blocks in sizes:
        before = pool.blocks
        if blocks > before:
            until(lambda blocks=blocks: pool.grow(blocks) == blocks)
        else:
            until(lambda blocks=blocks: pool.shrink(blocks))
            expected[:, blocks:] = 0
        assert pool.blocks == blocks
        assert np.array_equal(pool.bytes[:, :blocks], expected[:, :blocks])
        new = np.random.default_rng(blocks).integers(0, 256, (8, blocks, block), np.uint8)
        pool.bytes[:, :blocks] = new
        expected[:, :blocks] = new
    assert (pool.bytes.ctypes.data, pool.bytes.shape) == (place, shape)
    assert (pool.bytes[:, -1] == 7).all(), "the spare block is where it was"


def test_memory_is_the_system_s_until_it_is_used_and_again_when_it_is_given_up() -> None:
    pool = made(256, 4096, block=2048)
    size = pool.bytes_per_block
    assert size == 8 * 2048
    assert pool.grow(4096) == 4096
    assert not pool.bytes[:, ::64, 0].any()
    assert resident(pool) < 64 * size, "what is only read is not there"
    pool.bytes[:, :4096] = 1
    assert resident(pool) == pytest.approx(4096 * size, rel=0.1)
    until(lambda: pool.shrink(256))
    assert resident(pool) == pytest.approx(256 * size, rel=0.1)
    pool.clear()
    assert resident(pool) == 0
    assert not pool.bytes[:, :256].any()


def test_growth_is_refused_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, left = made(4, 4096), 64 << 20
    monkeypatch.setattr(footprint, "available", lambda: left)
    with pytest.raises(MemoryError, match="to grow by 3 MB, and 0 MB are left"):
        pool.grow(4096)
    assert pool.blocks == 4
    left = 128 << 20
    assert pool.grow(4096) == 4096
