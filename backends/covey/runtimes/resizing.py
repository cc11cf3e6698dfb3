"""Resizes the KV pool between two passes: the paper's steps, in an order that is safe at each of them.

    grow      get memory first, then add the blocks that it holds
    contract  1. plan: each block above the boundary gets a free one below, one for all its owners       (BlockPool)
              2. move their keys and values, all of them at once                                         (model)
              3. renumber the tables; the plan has updated counts and hashes                             (Sequences)
              4. trim: return the memory above to the device                                             (model)

No pass may be in flight. Steps 1 to 3 are one call, so no other code sees the pool between them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from covey.contracts.types import Resized, ResizeStatus
from covey.kv.sequences import Sequences

if TYPE_CHECKING:
    from covey.models.native.model import NativeModel
    from covey.runtimes.opening import Model

AnyModel: TypeAlias = "Model | NativeModel"

log = logging.getLogger("covey.target")


def resize(model: AnyModel, sequences: Sequences, blocks: int, least: int) -> Resized:
    """Resize the pool to `blocks`, which must be at least `least`. After LATER, call it again to continue. A refusal
    changes nothing."""
    pool = sequences.pool
    if not least <= blocks <= model.most_blocks:
        return Resized(ResizeStatus.NOT_HERE, pool.total)
    if blocks < pool.total and not _contract(model, sequences, blocks):
        return Resized(ResizeStatus.IN_USE, pool.total)
    try:
        if blocks == pool.total:
            return Resized(ResizeStatus.OK if model.shrink(blocks) else ResizeStatus.LATER, blocks)
        pool.grow(max(0, min(model.grow(blocks), blocks) - pool.total))
    except MemoryError as error:
        log.warning("%s", error)
        return Resized(ResizeStatus.NO_MEMORY, pool.total)
    return Resized(ResizeStatus.OK if pool.total == blocks else ResizeStatus.LATER, pool.total)


def _contract(model: AnyModel, sequences: Sequences, blocks: int) -> bool:
    plan = sequences.pool.contract(blocks)
    if plan is None:
        return False
    old, new = plan
    if old:
        model.move_blocks(np.asarray(old, np.int32), np.asarray(new, np.int32))
        sequences.renumber(dict(zip(old, new)))
    return True
