"""Makes the states that a head reads (`covey.models.heads`): the taps in some slots, normed, times one matrix."""

from __future__ import annotations

from typing import NamedTuple

from covey.models.native.attention import SLOTS
from covey.models.native.matmul import COLUMNS, PANEL_BYTES, Multiplied, Rows, panel, put
from covey.models.native.stages import normalise
from covey.models.native.tasks import finish, take
from covey.models.native.words import Array, compiled, rounded, widened

STAGES = 2


class Made(NamedTuple):
    """What makes states, and scratch memory."""

    products: Multiplied
    matrix: Array  # the panels' memory
    width: int  # of `a`'s rows, in whole groups
    norms: Array  # [norms, numbers], factors of RMS norms that are applied in turn
    parts: Array  # [norms], how many numbers each norm takes together
    eps: float
    taps: Array  # [threads, numbers]
    a: Rows
    tile: Array  # [threads, tokens, COLUMNS]


@compiled
def make(team, made, taps, slots, states):
    """Do one thread's part of writing the states [slots, width], in bfloat16's bits."""
    mine, count, values, part = 0, len(slots), made.taps[team.thread], taps.shape[3]
    task = take(team, 0, count)
    while task >= 0:
        block, place = slots[task] // SLOTS, slots[task] % SLOTS
        for i in range(len(values)):
            values[i] = widened(taps[i // part, block, place, i % part])
        for norm in range(len(made.parts)):
            size = made.parts[norm]
            for first in range(0, len(values), size):
                some = values[first : first + size]
                normalise(some, made.norms[norm, first : first + size], made.eps, some)
        put(made.products.kind, values.reshape(1, -1), made.a, task, 0)
        mine += 1
        task = take(team, 0, count)
    finish(team, 0, count, mine)
    mine, columns, tile = 0, states.shape[1], made.tile[team.thread]
    panels, here = (columns + COLUMNS - 1) // COLUMNS, made.matrix.ctypes.data
    task = take(team, 1, panels)
    while task >= 0:
        following = here + (task + 1) * made.width * PANEL_BYTES[made.products.kind]
        panel(made.products, here, task, made.a, count, made.width, tile, following)
        first = task * COLUMNS
        for row in range(count):
            for i in range(min(COLUMNS, columns - first)):
                states[row, first + i] = rounded(tile[row, i])
        mine += 1
        task = take(team, 1, panels)
    finish(team, 1, panels, mine)
