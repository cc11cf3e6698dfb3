"""Measures how alike target and drafter are at drafted positions: MetaSD's block divergence.

It is the mean of 1 - TV(p, q) = sum of min(p, q) over a row's drafted positions, accepted or not. p is the model's
distribution at temperature 1, without truncation and penalties, even if the request is greedy. q is the node's sparse
row:

    coupled rule    the best tokens of q at temperature 1; the rest of q counts as unlike, so the result is a lower
                    bound, too small by at most the mass that is left out
    rejection rule  the truncated distribution that the token was drawn from, brought back to temperature 1: exact
    lookups         one token, with certainty: exact, and equal to p of that token
"""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Floats, Ints, Trees
from covey.noise.arrays import Logits, beside, host, log_softmax, plain
from covey.noise.noise import Reals
from covey.sampling.settings import SettingsTable
from covey.trees.verify import parent_places

NO_DIVERGENCE = -1.0  # the value of a row without drafts


def block_divergence(logits: Logits, table: SettingsTable, settings: Ints, trees: Trees) -> Floats:
    """Return the block divergence of each row of `trees`. `logits` and `settings` are packed as in
    `covey.trees.verify`. Siblings share their parent's q."""
    found = np.full(trees.rows, NO_DIVERGENCE, np.float32)
    if trees.q_ids is None or trees.q_probs is None or not len(trees.tokens):
        return found
    places, nodes = np.unique(parent_places(trees), return_index=True)
    setting = settings[places]
    vocab, q_ids = logits.shape[1], trees.q_ids[nodes].astype(np.int64)
    q = _at_temperature_one(trees.q_probs[nodes].astype(np.float64), table, setting)
    q[(q_ids < 0) | (q_ids >= vocab)] = 0.0  # another target's, for which it drafts as well
    q_ids = np.clip(q_ids, 0, vocab - 1)
    part = plain(logits)
    part = log_softmax(part[beside(places.astype(np.int64), part)])
    picked = host(part[beside(np.arange(len(places))[:, None], part), beside(q_ids, part)])
    shared = np.minimum(np.exp(picked.astype(np.float64)), q).sum(axis=1)
    rows = np.repeat(np.arange(trees.rows), trees.sizes)[nodes]
    counts = np.bincount(rows, minlength=trees.rows)
    sums = np.bincount(rows, np.nan_to_num(shared), minlength=trees.rows)
    drafted = counts > 0
    found[drafted] = np.clip(sums[drafted] / counts[drafted], 0.0, 1.0)
    return found


def _at_temperature_one(q: Reals, table: SettingsTable, settings: Ints) -> Reals:
    """Bring q rows of the rejection rule from their temperature to 1, in place. A greedy row is one token and stays."""
    warm = np.flatnonzero(table.rejection[settings] & (table.temperature[settings] > 0))
    if len(warm):
        powers = np.power(q[warm], table.temperature[settings[warm], None])
        q[warm] = powers / np.maximum(powers.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return q
