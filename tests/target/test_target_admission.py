"""Who gets the pool's last blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.contracts.profile import TargetSettings
from covey.contracts.types import NO_FLOATS, Open, Resized, ResizeStatus, RowStatus, Sampling, TargetWork, Trees
from covey.target.runner import TargetRunner
from tests.arrays import ints
from tests.models import tiny_models


@pytest.mark.parametrize("blocks", [4, 5])
def test_no_tree_takes_a_block_that_another_row_needs(tmp_path: Path, blocks: int) -> None:
    """Both rows need their second block; the first one's tree would fill a third."""
    folder = tiny_models.build(tmp_path, "llama")
    settings = TargetSettings(dtype="float64", threads=1, kv_blocks=blocks, block_size=4, numerics="fast")
    target = TargetRunner.load(folder, settings, token_budget=64, name="target")
    opens = tuple(Open(tag, ints(tag, 5, 6, 7), 4, Sampling()) for tag in (1, 2))
    target.step(TargetWork(ints(1, 2), ints(4, 4), ints(4, 4), Trees.empty(2), opens, sequence=1))
    trees = Trees(ints(0, 4, 4), ints(3, 3, 3, 3), ints(-1, 0, 1, 2), NO_FLOATS)
    reply = target.step(TargetWork(ints(1, 2), ints(5, 5), ints(1, 1), trees, sequence=2))
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.OK]
    assert (np.diff(reply.offsets) >= 1).all()
    target.check()
    assert target.resize(9) == Resized(ResizeStatus.NOT_HERE, blocks)
    assert target.info().total_blocks == reply.total_blocks == blocks
