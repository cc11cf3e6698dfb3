from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.kv.pool import BlockPool, chain_hashes


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


def test_kept_blocks_give_way_before_memory_is_taken_that_others_may_need() -> None:
    room = True
    pool = BlockPool(6, lambda: room)
    first = pool.take(3)
    assert first == [0, 1, 2]
    for block in first[:2]:
        pool.publish(block, bytes([block]))
    pool.release(first)
    room = False
    assert pool.take(2) == [2, 1], "what has been used, then what is kept; of one chain the end goes first"
    assert pool.take(3) == [0, 3, 4], "requests have what they need all the same"
    room = True
    pool.check()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), total=st.integers(1, 24))
def test_contents_are_followed_through_growing_and_contracting(seed: int, total: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(total)
    tables: list[list[int]] = []
    contents: dict[int, bytes] = {}  # block -> what was published there
    for _ in range(60):
        action = rng.randrange(5)
        if action == 0 and (taken := pool.take(rng.randrange(1, 5))) is not None:
            tables.append(taken)
            for block, key in zip(taken, chain_hashes(np.full(16, rng.randrange(4), np.int32), 4, "")):
                contents[block] = key
                pool.publish(block, key)
        elif action == 1 and tables:
            pool.release(tables.pop(rng.randrange(len(tables))))
        elif action == 2 and contents:
            found = pool.find([rng.choice(list(contents.values()))])
            pool.share(found)
            tables.append(found)
        elif action == 3:
            pool.grow(rng.randrange(6))
        elif action == 4:
            bound = rng.randrange(1, pool.total + 1)
            before = (pool.total, pool.available, pool.owned)
            plan = pool.contract(bound)
            if plan is None:
                assert before == (pool.total, pool.available, pool.owned)
                assert pool.owned > bound
            else:
                assert pool.total == bound
                assert all(new < bound <= old for old, new in zip(*plan, strict=True))
                moved = dict(zip(*plan))
                tables = [[moved.get(block, block) for block in table] for table in tables]
                contents = {moved.get(block, block): key for block, key in contents.items()} | {
                    moved[block]: contents[block] for block in moved if block in contents
                }
        pool.check(tables)
        for key in contents.values():
            for block in pool.find([key]):
                assert contents[block] == key
    for table in tables:
        pool.release(table)
    pool.check([])
    assert pool.available == pool.total
