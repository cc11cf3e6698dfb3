"""Tells whether given tokens are the ones that `drawing.draw` would draw, at less cost than drawing.

Most losing tokens lose to the best one, which is never cut, so the noise of two tokens shows that. For the others only
tokens that beat the given one matter. Truncation keeps a prefix of an order, so a token loses to any winner before it
in that order. Only if all winners come after it, truncation is computed, for one token of each row and without sorting.
The caller must apply bias and penalties before.
"""

from __future__ import annotations

import numpy as np

from covey.noise.arrays import Logits, beside, exp, host, largest, numbers, plain, select
from covey.noise.noise import (
    Index,
    Purpose,
    Reals,
    Words,
    best_tokens,
    gumbel,
    hash_tokens,
    keys,
    race,
    row_words,
    token_words,
)
from covey.sampling.settings import SettingsTable
from covey.sampling.truncation import Flags

TOGETHER = 1 << 20  # elements of rows that are processed at once


def wins(logits: Logits, tokens: Index, table: SettingsTable, settings: Index, positions: Index) -> Flags:
    """Return, by row of `logits`, whether the token wins. Sums of weights are in float32, so the cut may be wrong by
    one token. No token wins in a row whose logits are not finite."""
    logits = plain(logits)
    best, values = best_tokens(logits)
    own = host(logits[numbers(len(tokens), logits), beside(tokens, logits)]).astype(np.float64)
    fine = np.isfinite(values) & np.isfinite(own)
    won: Flags = fine & (tokens == best)
    hot = np.flatnonzero(fine & (table.temperature[settings] > 0))
    row_keys = keys(table.seed[settings[hot]], positions[hot], Purpose.COUPLED)
    mine, theirs = _noise(np.stack((tokens[hot], best[hot])), row_keys, logits.shape[1])
    behind = (own[hot] - values[hot]) / table.temperature[settings[hot]] + mine < theirs
    won[hot[behind]] = False
    hot = hot[~behind]
    if len(hot):
        part, setting = select(logits, hot), settings[hot]
        won[hot] = _wins_race(part, tokens[hot], own[hot], best[hot], values[hot], table, setting, positions[hot])
    return won


def _noise(tokens: Index, row_keys: Words, vocab: int) -> Reals:
    """Return the noise of `tokens` [n, rows]."""
    ids = token_words(vocab)[tokens]
    hashes = np.empty_like(ids)
    hash_tokens(ids, row_words(row_keys)[:, None, :, 0], hashes, np.empty_like(ids))
    return gumbel(hashes)


def _wins_race(
    logits: Logits,
    tokens: Index,
    own: Reals,
    best: Index,
    best_values: Reals,
    table: SettingsTable,
    settings: Index,
    positions: Index,
) -> Flags:
    row_keys = keys(table.seed[settings], positions, Purpose.COUPLED)
    found = race(logits, tokens[:, None], own[:, None], table.temperature[settings], row_keys)
    rows, earlier = found.rows, found.tokens < tokens[found.rows]
    bars = np.empty(len(tokens))
    mine = found.tokens == tokens[rows]
    bars[rows[mine]] = found.scores[mine]
    beats = (found.scores > bars[rows]) | ((found.scores == bars[rows]) & earlier)
    before = (found.values > own[rows]) | ((found.values == own[rows]) & earlier)
    truncated = table.truncated[settings]
    won = np.ones(len(tokens), np.bool_)
    won[rows[beats & (before | ~truncated[rows])]] = False

    asked = np.flatnonzero(won & truncated & (tokens != best))
    won[asked] = _kept(logits, asked, tokens[asked], best_values, table, settings)
    left = np.flatnonzero(beats & won[rows])
    left = left[np.lexsort((found.tokens[left], -found.values[left], rows[left]))]
    behind, first = np.unique(rows[left], return_index=True)  # a row has lost if the best token that beats it is kept
    won[behind] = ~_kept(logits, behind, found.tokens[left[first]], best_values, table, settings)
    return won


def _kept(
    logits: Logits, rows: Index, tokens: Index, best_values: Reals, table: SettingsTable, settings: Index
) -> Flags:
    """Return whether top-k, top-p and min-p keep `tokens`, one for each of the given rows."""
    kept = np.ones(len(rows), np.bool_)
    step = max(1, TOGETHER // logits.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some = rows[part]
        kept[part] = _weighed(select(logits, some), tokens[part], best_values[some], table, settings[some])
    return kept


def _weighed(logits: Logits, tokens: Index, best_values: Reals, table: SettingsTable, settings: Index) -> Flags:
    vocab = logits.shape[1]
    temperatures = table.temperature[settings]
    own = logits[numbers(len(tokens), logits), beside(tokens, logits)][:, None]
    before = (logits > own) | ((logits == own) & (numbers(vocab, logits) < beside(tokens[:, None], logits)))
    scale = beside(np.stack((best_values, temperatures)).astype(np.float32)[:, :, None], logits)
    weights = exp((logits - scale[0]) / scale[1])
    top_k = np.where(table.top_k[settings] > 0, np.minimum(table.top_k[settings], vocab), vocab)
    total = host(weights.sum(axis=1))
    limited = np.flatnonzero((top_k < vocab) & (table.top_p[settings] < 1.0))
    if len(limited):
        sums = largest(select(weights, limited), int(top_k[limited].max())).cumsum(axis=1)
        total[limited] = sums[np.arange(len(limited)), top_k[limited] - 1]
    mass = host((weights * before).sum(axis=1))
    heights = (host(own[:, 0]).astype(np.float64) - best_values) / temperatures
    kept: Flags = host(before.sum(axis=1)) < top_k
    kept &= (mass < table.top_p[settings] * total) | (table.top_p[settings] >= 1.0)
    kept &= heights >= table.log_min_p[settings]
    return kept
