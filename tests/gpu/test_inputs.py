"""What a pass brings over, and how it is padded to its bucket."""

from __future__ import annotations

import numpy as np
import torch

from covey.gpu.inputs import Bucket, Inputs, round_up
from covey.gpu.tilings import Tiling
from covey.models.lanes import Lanes, Pass, windows_of
from tests.arrays import ints

WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NONE = np.zeros(0, np.int32)


def test_a_pass_is_padded_and_cut_into_tiles() -> None:
    """Rows of 1, 11 and 6 tokens, of which no tile takes more than 8 where a key head has 16 query heads."""
    inputs = Inputs(tokens=64, blocks=8, nodes=32, tiling=Tiling(16, 2, 20), device=WHERE)
    lanes = Lanes(ints(0, 1, 12, 18), ints(30, 11, 9), np.arange(24, dtype=np.int32).reshape(3, 8))
    tokens = np.arange(18, dtype=np.int32)
    slots = np.where(tokens % 5 == 4, -1, tokens)
    bucket = inputs.fill(Pass(tokens, tokens, slots, lanes, ints(0, 11, 17)), windows_of(lanes))
    assert bucket == Bucket(tokens=24, tiles=4, queries=8, out=3)
    assert inputs.slots(bucket).tolist() == [*slots.tolist(), *[-1] * 6]
    assert inputs.tokens(bucket).tolist() == [*range(18), *[0] * 6]
    assert inputs.out(bucket).tolist() == [0, 11, 17]
    tiles = inputs.tiles(bucket)
    assert tiles.first.tolist() == [0, 1, 9, 12]
    assert tiles.count.tolist() == [1, 8, 3, 6]
    assert tiles.row.tolist() == [0, 1, 1, 2]
    assert tiles.reach.tolist() == [30, 8, 11, 9]
    assert tiles.header[:2].tolist() == [8, 0]
    assert tiles.tables[:24].tolist() == list(range(24))


def test_smaller_passes_leave_nothing_behind() -> None:
    inputs = Inputs(tokens=64, blocks=4, nodes=32, tiling=Tiling(2, 4, 1), device=WHERE)

    def fill(sizes: list[int]) -> Bucket:
        offsets = np.cumsum([0, *sizes]).astype(np.int32)
        lanes = Lanes(offsets, np.array(sizes, np.int32), np.ones((len(sizes), 4), np.int32))
        at = np.arange(offsets[-1], dtype=np.int32)
        return inputs.fill(Pass(at, at, at, lanes, at), windows_of(lanes))

    fill([1] * 13)
    bucket = fill([1] * 9)
    assert bucket.tiles == round_up(9) == 12
    assert inputs.tiles(bucket).count.tolist() == [1] * 9 + [0] * 3
