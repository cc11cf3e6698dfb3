from __future__ import annotations

import numpy as np

from covey.contracts.types import Open, Sampling
from covey.kv.pool import BlockPool
from covey.kv.sequences import Sequences


def test_tables_follow_blocks_that_the_pool_moves() -> None:
    pool = BlockPool(8)
    sequences = Sequences(pool, 4, reuse=True)
    tokens = np.arange(9, dtype=np.int32)
    first = sequences.open(Open(1, tokens, 9, Sampling()), 0)
    assert sequences.reserve(first, 12)
    first.num_cached_tokens = 9
    sequences.settle(first)
    second = sequences.open(Open(2, tokens, 9, Sampling()), 0)  # shares two blocks
    assert sequences.reserve(second, 20)
    assert second.blocks == [0, 1, 3, 4, 5]
    sequences.close(first)
    plan = pool.contract(5)
    assert plan == ([5], [2])
    sequences.renumber(dict(zip(*plan)))
    sequences.check()
    assert second.blocks == [0, 1, 3, 4, 2]
    assert second.table.tolist() == second.blocks
    assert second.slots[16:].tolist() == [8, 9, 10, 11]
