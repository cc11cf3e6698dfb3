"""Draws drafters' proposals from their logits under the rejection rule, with the sparse q rows that they ship.

`drafters/choosing.py` makes proposals under the coupled rule. Temperature, top-k, top-p and min-p apply as in
`sampling`. Penalties, minimum length and bad words do not. They would need each request's tokens at every drafted step,
and a proposal need only be likely. Knows no trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.contracts.types import SPARSE, Floats, Ints
from covey.noise.arrays import Logits, plain
from covey.noise.noise import Index, Purpose, Reals, keys, leading_tokens, uniforms
from covey.sampling.settings import SettingsTable
from covey.sampling.truncation import mass_of


@dataclass(frozen=True, slots=True)
class SparseDraws:
    """The token drawn for each row, and exactly the distribution that it was drawn from: `probs[i, j]` is the
    probability of `ids[i, j]`; all other ids have 0. If a row's logits are not finite, its token is -1."""

    tokens: Ints
    ids: Ints
    probs: Floats


def propose_rejection(
    logits: Logits, table: SettingsTable, settings: Ints, positions: Ints, rounds: Ints
) -> SparseDraws:
    """Draw by the rejection rule from the best SPARSE tokens, truncated further by the request's settings (top-p counts
    only their mass). The draw uses exactly the returned float32 probabilities. Greedy rows are one-hot."""
    logits = plain(logits)
    setting, position = np.asarray(settings, np.int64), np.asarray(positions, np.int64)
    leaders, values = leading_tokens(logits, SPARSE)
    fine = np.isfinite(values[:, 0])
    probs = np.zeros(leaders.shape, np.float32)
    probs[fine] = _truncated(values[fine], table, setting[fine])
    sums = probs.cumsum(axis=1, dtype=np.float64)
    thresholds = (
        uniforms(keys(table.seed[setting], position, Purpose.DRAFT, np.asarray(rounds, np.int64))) * sums[:, -1]
    )
    picked = np.minimum((sums <= thresholds[:, None]).sum(axis=1), leaders.shape[1] - 1)
    tokens = np.where(fine, leaders[np.arange(len(setting)), picked], -1)
    missing = ((0, 0), (0, SPARSE - leaders.shape[1]))
    return SparseDraws(tokens.astype(np.int32), np.pad(leaders.astype(np.int32), missing), np.pad(probs, missing))


def sparse_q(logits: Logits) -> tuple[Ints, Floats]:
    """Return ids and probabilities of each row's best SPARSE tokens, at temperature 1 and not renormalised."""
    logits = plain(logits)
    leaders, values = leading_tokens(logits, SPARSE)
    best = np.where(np.isfinite(values[:, 0]), values[:, 0], 0.0)
    mass = mass_of(logits, best, np.ones(len(best)))
    return leaders.astype(np.int32), (np.exp(values - best[:, None]) / mass[:, None]).astype(np.float32)


def _truncated(values: Reals, table: SettingsTable, settings: Index) -> Floats:
    """Return the probabilities of tokens with these logits, which descend along each row."""
    temperatures = table.temperature[settings]
    greedy = temperatures == 0
    weights = (values - values[:, :1]) / np.where(greedy, 1.0, temperatures)[:, None]
    rank = np.arange(values.shape[1])
    top_k = np.where(table.top_k[settings] > 0, table.top_k[settings], values.shape[1])
    kept = (rank < np.where(greedy, 1, top_k)[:, None]) & (weights >= table.log_min_p[settings, None])
    probs = np.where(kept, np.exp(weights), 0.0)
    before = probs.cumsum(axis=1) - probs
    probs[(before >= table.top_p[settings, None] * probs.sum(axis=1, keepdims=True)) & (rank > 0)] = 0.0
    probs /= probs.sum(axis=1, keepdims=True)
    return probs.astype(np.float32)
