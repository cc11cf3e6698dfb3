"""Who gets the pool's last blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.contracts.profile import TargetSettings
from covey.contracts.types import Resized, ResizeStatus, RowStatus
from covey.target.runner import TargetRunner
from tests.models import tiny_models
from tests.target.driver import Driver


@pytest.mark.parametrize("blocks", [4, 5])
def test_no_tree_takes_a_block_that_another_row_needs(tmp_path: Path, blocks: int) -> None:
    """Both rows need their second block; the first one's tree would fill a third."""
    folder = tiny_models.build(tmp_path, "llama")
    settings = TargetSettings(dtype="float64", threads=1, kv_blocks=blocks, block_size=4, numerics="fast")
    target = TargetRunner.load(folder, settings, token_budget=64, name="target")
    driver = Driver(target)
    for tag in (1, 2):
        driver.open(tag, [tag, 5, 6, 7])
    driver.step(1, 2)
    reply = driver.step(1, 2, chains=[[3, 3, 3, 3]])
    assert reply.status.tolist() == [RowStatus.OK, RowStatus.OK]
    assert (np.diff(reply.offsets) >= 1).all()
    target.check()
    assert target.resize(9) == Resized(ResizeStatus.NOT_HERE, blocks)
    assert target.info().total_blocks == reply.total_blocks == blocks
