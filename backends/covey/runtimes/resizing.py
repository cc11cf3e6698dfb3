"""A KV pool of another size, between two passes: the paper's steps in the order that is safe at each of them.

    grow      memory first, then its blocks are handed out, as far as it has come
    contract  1. plan: each block above the boundary gets a free one below, once however many share it  (BlockPool)
              2. move their keys and values, all of them at once                                         (model)
              3. tables follow; counts and hashes did with the plan                                      (Sequences)
              4. trim: the memory above goes back to the device                                          (model)

No pass may be in flight. Nobody can see the pool between 1 and 3: they are one call.
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

AnyModel: TypeAlias = "Model | NativeModel"  # whatever computes it

log = logging.getLogger("covey.target")


def resize(model: AnyModel, sequences: Sequences, blocks: int, least: int) -> Resized:
    """Have so many blocks, and at least `least`; asked again it goes on. Nothing changes where it is
    refused."""
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
