"""A pass over a decoder as stages of tasks that threads share: each layer, from its input to its output, then the head.

    norm           rows      x -> a                       a: the rows that panels multiply
    queries, keys, values    panels   a -> y
    turn           rows      y -> q, and keys and values into the pool
    attend         some queries of a lane, for a head of keys     q, pool -> heads
    heads          rows      heads -> a
    output         panels    x += a times weights
    norm           rows      x -> a
    gate and up    pairs of panels    a -> b
    down           panels    x += b times weights

A stage begins after all tasks of the one before are done.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covey.models.native.attention import SLOTS, Compared, Seen, attend, exponential
from covey.models.native.matmul import COLUMNS, PANEL_BYTES, Multiplied, Rows, panel, put
from covey.models.native.tasks import finish, first_of, take
from covey.models.native.tiles import GROUP, PAIRS
from covey.models.native.words import Array, as_float, as_stored, compiled, compiled_sum, rounded

STAGES = 9  # per layer
AROUND = 3  # before and after the layers
ROWS = 8  # most rows of a task whose work for a row is little
GATED = 2 * GROUP // COLUMNS  # panels of gates and ups in a task


class Shape(NamedTuple):
    """A decoder's sizes, and how it is computed."""

    products: Multiplied
    attention: Compared
    layers: int
    width: int
    heads: int  # of queries
    kv_heads: int
    dim: int  # of a head
    inner: int  # of the feed-forward
    vocab: int
    eps: float
    widths: tuple[int, int, int]  # of the rows that panels multiply, in whole groups: x, heads, the feed-forward
    inputs: int  # the same for the input of queries, keys and values
    paired: int  # 1 for a head, whose layer reads an embedding and a state
    normed_residual: int  # 1: the layer adds to the normed state


class Held(NamedTuple):
    """The weights. A layer's panels: queries, keys and values; output; gates and ups alternating; down."""

    embedding: Array  # [vocab, width], bfloat16's bits or float32
    panels: Array  # [layers, 4], addresses
    head: int
    begins: Array  # [threads, products + 1], the address of each product's first panel of a thread, and the first again
    norms: Array  # [2 * layers + 1, width]
    head_norms: Array  # [layers, 2, dim], of queries and keys; or empty
    state_norm: Array  # [width], of a head; or empty
    after: tuple[Array, Array, Array, Array]  # [layers, 2, columns]: factors of sums, and biases
    # For gates and ups it is empty if all factors are one and all biases zero.
    after_head: Array  # [2, vocab]


class Work(NamedTuple):
    """Scratch memory of passes."""

    x: Array  # [tokens, width]
    a: Rows
    b: Rows
    y: Array  # [tokens, columns of queries, keys and values]
    q: Array  # [kv heads, tokens, group, whole vectors of dim]
    heads: Array  # [tokens, heads * dim]
    tile: Array  # [threads, 2, tokens, GROUP]
    rows: Array  # [threads, ROWS, width]
    scores: Array  # [threads, rows, keys]
    sums: Array  # [threads, rows, whole vectors of dim and one more number]
    own_keys: Array  # [threads, blocks, ...]
    own_values: Array
    pair: Array  # [threads, 2 * width], of a head; or empty


class Asked(NamedTuple):
    """The inputs of a pass."""

    tokens: Array
    slots: Array
    turns: Array  # [tokens, 2, dim / 2]: cosines and sines of positions
    every: Array  # the indices of all tokens
    wanted: Array
    seen: Seen
    states: Array  # [tokens, width], of a head; or empty
    taps: Array  # layers whose input x is kept


@compiled
def run(team, shape, held, keys, values, taps, work, asked, logits):
    """Do one thread's part of a pass. `keys` and `values` are [layers, blocks, kv heads, ...], `taps` [planes, blocks,
    slots, part of a slot's numbers], `logits` [wanted, vocab]."""
    tokens, after, begins = len(asked.tokens), held.after, held.begins[team.thread]
    _embed(team, 0, held.embedding, asked.tokens, work.x)
    for layer in range(shape.layers):
        stage, panels, number = 1 + layer * STAGES, held.panels[layer], 4 * layer
        if shape.paired:
            _pair(team, stage, shape, held.norms[0], held.state_norm, work, asked.states)
        else:
            _norm(
                team, stage, shape, held.norms[2 * layer], work, asked.every, _tap(asked.taps, layer), asked.slots, taps
            )
        to, then = work.y[:tokens], begins[number + 1]
        _write(team, stage + 1, shape.products, panels[0], work.a, shape.inputs, after[0][layer], work, to, then)
        _turn(team, stage + 2, shape, held.head_norms, layer, work, asked, keys[layer], values[layer])
        _attend(team, stage + 3, shape, work, asked.seen, keys[layer], values[layer])
        _take_heads(team, stage + 4, shape.products.kind, work, tokens)
        k, then = shape.widths[1], begins[number + 2]
        _add(team, stage + 5, shape.products, panels[1], work.a, k, after[1][layer], work, tokens, then)
        _norm(team, stage + 6, shape, held.norms[2 * layer + 1], work, asked.every, -1, asked.slots, taps)
        _gate(team, stage + 7, shape, panels[2], after[2][layer], work, tokens, begins[number + 3])
        k, then = shape.widths[2], begins[number + 4]
        _add(team, stage + 8, shape.products, panels[3], work.b, k, after[3][layer], work, tokens, then)
    stage = 1 + shape.layers * STAGES
    _norm(team, stage, shape, held.norms[2 * shape.layers], work, asked.wanted, -1, asked.slots, taps)
    k, then = shape.widths[0], begins[4 * shape.layers + 1]
    _write(team, stage + 1, shape.products, held.head, work.a, k, held.after_head, work, logits, then)


@compiled
def _embed(team, stage, embedding, tokens, x):
    mine, count = 0, len(tokens)
    task = take(team, stage, count)
    while task >= 0:
        row = embedding[tokens[task]]
        for i in range(len(row)):
            x[task, i] = as_float(row[i])
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled_sum
def _squares(values):
    """Return the sum of the values' squares, in an order that depends only on their number."""
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


@compiled
def normalise(values, weights, eps, to):
    scale = np.float32(1) / np.sqrt(_squares(values) / np.float32(len(values)) + np.float32(eps))
    for i in range(len(values)):
        to[i] = values[i] * scale * weights[i]


@compiled
def _tap(taps, layer):
    """Return the index of the tap before this layer, or -1 if there is none."""
    for number in range(len(taps)):
        if taps[number] == layer:
            return number
    return -1


@compiled
def _keep(x, slot, tap, taps):
    """Keep a token's x in its slot as tap number `tap`."""
    block, place, part = slot // SLOTS, slot % SLOTS, taps.shape[3]
    for i in range(len(x)):
        at = tap * len(x) + i
        taps[at // part, block, place, at % part] = rounded(x[i])


@compiled
def _pair(team, stage, shape, weights, state_norm, work, states):
    """Write the normed embedding and, next to it, the normed state into the rows of `a`. Set x to the state."""
    mine, count, width, pair = 0, len(states), shape.width, work.pair[team.thread]
    task = take(team, stage, count)
    while task >= 0:
        x, normed = work.x[task], pair[width:]
        normalise(x, weights, shape.eps, pair[:width])
        normalise(states[task], state_norm, shape.eps, normed)
        put(shape.products.kind, pair.reshape(1, -1), work.a, task, 0)
        for i in range(width):
            x[i] = normed[i] if shape.normed_residual else states[task, i]
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _together(team, count):
    """Return how many of `count` rows a task takes, if each row is little work."""
    return max(1, min(ROWS, (count + team.threads - 1) // team.threads))


@compiled
def _norm(team, stage, shape, weights, work, rows, tap, slots, taps):
    """Write the norm of these rows into the first rows of `a`. Keep their x as a tap if `tap` is not -1."""
    mine, together, normed = 0, _together(team, len(rows)), work.rows[team.thread]
    count = (len(rows) + together - 1) // together
    task = take(team, stage, count)
    while task >= 0:
        first = task * together
        some = min(together, len(rows) - first)
        for i in range(some):
            normalise(work.x[rows[first + i]], weights, shape.eps, normed[i])
        put(shape.products.kind, normed[:some], work.a, first, 0)
        if tap >= 0:
            for row in range(first, first + some):
                _keep(work.x[row], slots[row], tap, taps)
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _following(team, count, task, beside, then):
    """Return the address of what the thread reads before `task`: the panel beside, or `then` after its share."""
    return then if task == first_of(team.thread + 1, team.threads, count) else beside


@compiled
def _write(team, stage, how, w, rows, k, after, work, to, then):
    """Write a product. Then the thread reads the panel at `then`."""
    mine, tokens, columns, tile = 0, to.shape[0], to.shape[1], work.tile[team.thread, 0]
    count, size = (columns + COLUMNS - 1) // COLUMNS if tokens else 0, k * PANEL_BYTES[how.kind]
    task = take(team, stage, count)
    while task >= 0:
        panel(how, w, task, rows, tokens, k, tile, _following(team, count, task + 1, w + (task + 1) * size, then))
        first = task * COLUMNS
        for row in range(tokens):
            for i in range(min(COLUMNS, columns - first)):
                to[row, first + i] = tile[row, i] * after[0, first + i] + after[1, first + i]
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _add(team, stage, how, w, rows, k, after, work, tokens, then):
    """Add a product to x."""
    mine, columns, tile = 0, work.x.shape[1], work.tile[team.thread, 0]
    count, size = (columns + COLUMNS - 1) // COLUMNS, k * PANEL_BYTES[how.kind]
    task = take(team, stage, count)
    while task >= 0:
        panel(how, w, task, rows, tokens, k, tile, _following(team, count, task + 1, w + (task + 1) * size, then))
        first = task * COLUMNS
        for row in range(tokens):
            for i in range(min(COLUMNS, columns - first)):
                work.x[row, first + i] += tile[row, i] * after[0, first + i] + after[1, first + i]
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _gate(team, stage, shape, w, after, work, tokens, then):
    """Multiply by panels of gates and of ups, which alternate. Two of each give a group of `b`'s columns."""
    mine, how, k = 0, shape.products, shape.widths[0]
    gates, ups = work.tile[team.thread, 0], work.tile[team.thread, 1]
    scales, biases, scaled, size = after[0], after[1], after.shape[1] > 0, k * PANEL_BYTES[how.kind]
    count = (shape.inner + GROUP - 1) // GROUP
    task = take(team, stage, count)
    while task >= 0:
        number, last = task * GATED, (task + 1) * GATED
        following = _following(team, count, task + 1, w + last * size, then)
        for at in range(0, GROUP, COLUMNS):
            panel(how, w, number, work.a, tokens, k, gates[:, at:], w + (number + 1) * size)
            number += 2
            ahead = w + number * size if number < last else following
            panel(how, w, number - 1, work.a, tokens, k, ups[:, at:], ahead)
        for row in range(tokens if scaled else 0):
            for i in range(GROUP):
                at = 2 * task * GROUP + i // COLUMNS * 2 * COLUMNS + i % COLUMNS
                gates[row, i] = gates[row, i] * scales[at] + biases[at]
                ups[row, i] = ups[row, i] * scales[at + COLUMNS] + biases[at + COLUMNS]
        _gated(gates[:tokens], ups[:tokens])
        put(shape.products.kind, gates[:tokens], work.b, 0, task * GROUP)
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _gated(gates, ups):
    for row in range(len(gates)):
        for i in range(GROUP):
            gate = gates[row, i]
            gates[row, i] = gate / (np.float32(1) + exponential(-gate)) * ups[row, i]


@compiled
def _take_heads(team, stage, kind, work, tokens):
    mine, together = 0, _together(team, tokens)
    count = (tokens + together - 1) // together
    task = take(team, stage, count)
    while task >= 0:
        first = task * together
        put(kind, work.heads[first : min(tokens, first + together)], work.a, first, 0)
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _turn(team, stage, shape, head_norms, layer, work, asked, keys, values):
    """Turn queries and keys by their position, and write keys and values to their slots."""
    mine, count = 0, len(asked.tokens)
    dim, group = shape.dim, shape.heads // shape.kv_heads
    scale = np.float32(1 / np.sqrt(dim))
    task = take(team, stage, count)
    while task >= 0:
        row, turns = work.y[task], asked.turns[task]
        block, place = asked.slots[task] // SLOTS, asked.slots[task] % SLOTS
        for head in range(shape.heads):
            query = row[head * dim : (head + 1) * dim]
            if len(head_norms):
                normalise(query, head_norms[layer, 0], shape.eps, query)
            _turned(query, turns)
            to = work.q[head // group, task, head % group]
            for i in range(dim):
                to[i] = as_stored(query[i] * scale, to[i])
        for head in range(shape.kv_heads):
            first = (shape.heads + head) * dim
            key = row[first : first + dim]
            if len(head_norms):
                normalise(key, head_norms[layer, 1], shape.eps, key)
            _turned(key, turns)
            if shape.attention.kind == PAIRS:
                for i in range(dim):
                    keys[block, head, i // 2 * 2 * SLOTS + 2 * place + i % 2] = as_stored(key[i], keys[block, head, 0])
            else:
                for i in range(dim):
                    keys[block, head, i * SLOTS + place] = as_stored(key[i], keys[block, head, 0])
            first += shape.kv_heads * dim
            for i in range(dim):
                values[block, head, place, i] = as_stored(row[first + i], values[block, head, 0, 0])
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _turned(values, turns):
    half = turns.shape[1]
    for i in range(half):
        one, two = values[i], values[half + i]
        values[i] = one * turns[0, i] - two * turns[1, i]
        values[half + i] = two * turns[0, i] + one * turns[1, i]


@compiled
def _attend(team, stage, shape, work, seen, keys, values):
    mine, count = 0, len(seen.task_lanes) * shape.kv_heads
    group = shape.heads // shape.kv_heads
    scores, sums = work.scores[team.thread], work.sums[team.thread]
    own_keys, own_values = work.own_keys[team.thread], work.own_values[team.thread]
    task = take(team, stage, count)
    while task >= 0:
        which, head = task // shape.kv_heads, task % shape.kv_heads
        attend(
            shape.attention,
            seen,
            which,
            head,
            keys,
            values,
            work.q,
            group,
            scores,
            sums,
            own_keys,
            own_values,
            work.heads,
            shape.dim,
        )
        mine += 1
        task = take(team, stage, count)
    finish(team, stage, count, mine)
