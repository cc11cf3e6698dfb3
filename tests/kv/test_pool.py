from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.kv.pool import BlockPool, chain_hashes


def test_takes_all_and_no_more() -> None:
    pool = BlockPool(4)
    assert pool.take(5) is None
    assert pool.available == 4
    blocks = pool.take(4)
    assert blocks is not None
    assert sorted(blocks) == [0, 1, 2, 3]
    assert pool.take(1) is None
    pool.release(blocks)
    pool.check([])


def test_hash_covers_everything_before_and_the_tenant() -> None:
    tokens = np.arange(12, dtype=np.int32)
    plain = chain_hashes(tokens, 4, "")
    assert len(plain) == 3
    assert chain_hashes(tokens[:11], 4, "") == plain[:2]
    assert chain_hashes(tokens, 4, "", parent=plain[0], start=1) == plain[1:]
    other = tokens.copy()
    other[0] = 99
    assert not set(chain_hashes(other, 4, "")) & set(plain)
    assert not set(chain_hashes(tokens, 4, "tenant")) & set(plain)


def test_kept_blocks_are_found_shared_and_evicted_oldest_first() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    assert blocks is not None
    hashes = chain_hashes(np.arange(12, dtype=np.int32), 4, "")
    for block, key in zip(blocks, hashes):
        pool.publish(block, key)
    pool.release(blocks)
    assert pool.kept == 3
    assert pool.find(hashes) == blocks
    pool.share(pool.find(hashes[:1]))
    pool.check([blocks[:1]])
    assert pool.take(2) is not None  # the free one, then the chain's end, which nobody can use without its start
    assert pool.find(hashes) == blocks[:2]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), total=st.integers(1, 24))
def test_blocks_are_conserved_by_any_operations(seed: int, total: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(total)
    tables: list[list[int]] = []
    prompts = [np.asarray([rng.randrange(3) for _ in range(16)], np.int32) for _ in range(4)]
    for _ in range(60):
        action = rng.randrange(3)
        if action == 0:
            taken = pool.take(rng.randrange(1, 5))
            if taken is not None:
                tables.append(taken)
                for block, key in zip(taken, chain_hashes(rng.choice(prompts), 4, "")):
                    pool.publish(block, key)
        elif action == 1 and tables:
            pool.release(tables.pop(rng.randrange(len(tables))))
        elif action == 2:
            found = pool.find(chain_hashes(rng.choice(prompts), 4, ""))
            pool.share(found)
            tables.append(found)
        pool.check(tables)
    for table in tables:
        pool.release(table)
    pool.check([])
    assert pool.available == total


def test_check_sees_a_block_released_twice() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    assert blocks is not None
    pool.release(blocks)
    pool.release(blocks)
    with pytest.raises(AssertionError):
        pool.check()
