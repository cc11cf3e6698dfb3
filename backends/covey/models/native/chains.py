"""Draws chains of drafts in one call: each step is a pass, and the race that picks the token for the next step.

A token's share is defined in `covey.drafters.choosing`. Logarithms are float32 polynomials, because a proposal need
only be likely: a winner changes about once in a million.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covey.models.native.attention import largest, softmax
from covey.models.native.contenders import hashed
from covey.models.native.stages import normalise, run
from covey.models.native.tasks import Team, finish, take
from covey.models.native.words import Array, bits_of, compiled, number_of

_ONE, _HALF = np.float32(1), np.float32(0.5)
_LN2 = np.float32(0.6931471805599453)
_SMALL = np.float32(0.03125)  # below it the series is exact enough, above it 1 - u is
_UNIT = np.float32(2.0**-31)
_ROOT = np.int32(0x3F3504F3)  # the bits of sqrt(0.5)
_MANTISSA = np.int32(0x7FFFFF)
_SERIES = tuple(np.float32(2 / n) for n in (9, 7, 5, 3))
_LOWEST = np.float32(-3.0e38)


class Draws(NamedTuple):
    """The inputs of the race."""

    scales: Array  # [rows], 1 / temperature; 0 for greedy
    words: Array  # [depth, 3, rows], of the noise
    hashed: Array  # [columns], the hash word of each column's token
    ids: Array  # [columns], the tokens
    scores: Array  # [threads, columns], scratch memory


class Columns(NamedTuple):
    """The inputs of later steps, except for their tokens."""

    slots: Array  # [rows, depth - 1]
    turns: Array  # [rows, depth - 1, 2, dim / 2]
    most: int  # keys that a row's table can hold
    norm: Array  # [width], the norm that turns a head's outputs into states; empty if none


@compiled
def chain(team, shape, held, keys, values, taps, work, first, later, columns, draws, logits, tokens, shares):
    """Do one thread's part of the chains [rows, depth] and the logs of their tokens' shares. `first` is the pass over
    pending tokens. `later` is a pass of one token per row, which is changed from step to step. The team has counters
    [depth, stages, ...]: those of a pass, and two more."""
    depth = tokens.shape[1]
    for step in range(depth):
        mine = Team(team.counters[step], team.thread, team.threads, team.stop)
        stage = mine.counters.shape[0] - 2
        if step == 0:
            run(mine, shape, held, keys, values, taps, work, first, logits)
        else:
            _advance(mine, stage, step, shape, work, first, later, columns, tokens)
            run(mine, shape, held, keys, values, taps, work, later, logits)
        _draw(mine, stage + 1, step, draws, logits, tokens, shares)


@compiled
def _advance(team, stage, step, shape, work, first, later, columns, tokens):
    """Make `later` the pass over the tokens that the last step has drawn."""
    mine, count = 0, len(tokens)
    row = take(team, stage, count)
    while row >= 0:
        later.tokens[row] = tokens[row, step - 1]
        later.slots[row] = columns.slots[row, step - 1]
        later.turns[row] = columns.turns[row, step - 1]
        later.seen.lengths[row] = min(later.seen.lengths[row] + 1, columns.most)
        if shape.paired:
            left = work.x[first.wanted[row] if step == 1 else row]
            if len(columns.norm):
                normalise(left, columns.norm, shape.eps, later.states[row])
            else:
                later.states[row] = left
        mine += 1
        row = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _draw(team, stage, step, draws, logits, tokens, shares):
    mine, count, scores = 0, len(tokens), draws.scores[team.thread]
    row = take(team, stage, count)
    while row >= 0:
        scale, words = draws.scales[row], draws.words[step]
        if scale > 0:
            _enter(logits[row], scale, words[0, row], words[1, row], words[2, row], draws.hashed, scores)
        else:
            scores[:] = logits[row, : len(scores)]
        tokens[row, step] = draws.ids[_place(scores, largest(scores))]
        shares[row, step] = -np.log(softmax(scores))
        mine += 1
        row = take(team, stage, count)
    finish(team, stage, count, mine)


@compiled
def _enter(logits, scale, word, factor, other, tokens, scores):
    """Write logits / temperature + noise."""
    for i in range(len(scores)):
        u = (np.float32(hashed(tokens[i], word, factor, other)) + _HALF) * _UNIT
        series = u * (_ONE + u * (_HALF + u * (np.float32(1 / 3) + u * (np.float32(0.25) + u * np.float32(0.2)))))
        survived = -logarithm(_ONE - u)
        scores[i] = logits[i] * scale - logarithm(series if u < _SMALL else survived)


@compiled
def logarithm(x):
    """Return the natural logarithm of a positive float32; for zero a large negative number."""
    bits = bits_of(x)
    shifted = np.int32(bits - _ROOT)
    exponent = shifted >> np.int32(23)
    mantissa = number_of(np.int32((shifted & _MANTISSA) + _ROOT))
    s = (mantissa - _ONE) / (mantissa + _ONE)
    z = s * s
    total = _SERIES[0] * z + _SERIES[1]
    total = total * z + _SERIES[2]
    total = total * z + _SERIES[3]
    total = total * z * s + s + s
    found = total + np.float32(exponent) * _LN2
    return found if x > np.float32(0) else _LOWEST


@compiled
def _place(values, wanted):
    for i in range(len(values)):
        if values[i] == wanted:
            return i
    return 0
