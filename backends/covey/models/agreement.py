"""Tests whether the same tokens have the same logits in passes of several compositions, whatever computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.contracts.types import Ints
from covey.models.lanes import Lanes, Pass, chain_slots


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of a trial of whole passes."""

    vocab: int
    positions: int
    blocks: int
    block_size: int
    limit: int  # tokens per pass
    span: int = 0  # keys after which attention begins another sum: the first row reaches across, if it can


def passes_agree(forward: Callable[[Pass], Any], room: Room) -> bool:
    """Return whether the same tokens have the same logits in compositions as unlike as the room allows. `forward` gives
    arrays or tensors of their own."""
    length = min(72, room.positions, room.limit, room.blocks * room.block_size // 4)
    if length < 4:
        return True
    per_row = -(-length // room.block_size)
    ahead = max(0, room.span - length // 2)  # known tokens of the first row
    if ahead + length > min(room.positions, room.blocks // 2 * room.block_size):
        ahead = 0
    first = -(-(ahead + length) // room.block_size)
    rows = min(9, 1 + (room.blocks - first) // per_row, room.limit // 6 + 1)
    rng = np.random.default_rng(5)
    begin = [ahead] + [0] * (rows - 1)
    texts = [rng.integers(0, room.vocab, start + length).astype(np.int32) for start in begin]
    blocks = rng.permutation(room.blocks).astype(np.int32)
    tables = np.zeros((rows, first), np.int32)
    tables[0] = blocks[:first]
    tables[1:, :per_row] = blocks[first : first + (rows - 1) * per_row].reshape(rows - 1, per_row)

    def run(*steps: tuple[int, int, int]) -> list[Any]:
        """Return the logits of a row's tokens, counted from the first that is not known."""
        moved = [(row, start + begin[row], stop + begin[row]) for row, start, stop in steps]
        ends = np.cumsum([b - a for _, a, b in steps]).tolist()
        logits = forward(_chains(texts, tables, moved, room.block_size))
        return [logits[start:end] for start, end in zip([0, *ends], ends)]

    for start in range(0, ahead, room.limit):
        run((0, start - ahead, min(start + room.limit, ahead) - ahead))
    whole = [run((row, 0, length))[0] for row in range(rows)]
    half, odd = length // 2, min(5, length - 1)
    trials = [
        [(row, length - 1, length) for row in range(rows)],  # one token each
        [(row, length - odd + row % 3, length - row % 2) for row in range(rows)],  # uneven ends
        [(0, half, length), *((row, length - 1 - row, length - row) for row in range(1, rows))],  # chunk and rows
        [(0, length - 1, length)],
        [(0, length - odd, length)],
        [(0, 0, half)],
        [(0, half, length)],
        [(0, 0, half - 1), *((row, half, min(half + odd, length)) for row in range(1, rows))],
    ]
    for steps in trials:
        used = [step for step in steps if 0 <= step[1] < step[2]]
        while sum(stop - start for _, start, stop in used) > room.limit:
            used.pop()
        for (row, start, stop), logits in zip(used, run(*used)):
            if not bool((logits == whole[row][start:stop]).all()):
                return False
    return True


def _chains(texts: Sequence[Ints], tables: Ints, steps: Sequence[tuple[int, int, int]], block_size: int) -> Pass:
    sizes = [stop - start for _, start, stop in steps]
    lanes = Lanes(
        offsets=np.append(0, np.cumsum(sizes)).astype(np.int32),
        lengths=np.array([stop for _, _, stop in steps], np.int32),
        tables=tables[[row for row, _, _ in steps]],
    )
    return Pass(
        tokens=np.concatenate([texts[row][start:stop] for row, start, stop in steps]),
        positions=np.concatenate([np.arange(start, stop, dtype=np.int32) for _, start, stop in steps]),
        slots=np.concatenate([chain_slots(tables[row], start, stop, block_size) for row, start, stop in steps]),
        lanes=lanes,
        out=np.arange(sum(sizes), dtype=np.int32),
    )
