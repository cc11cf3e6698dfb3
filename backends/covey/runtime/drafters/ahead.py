"""The noise of a call's coming positions, in float32, computed for all its steps at once.

The target draws with exactly rounded logarithms; a proposal need only be likely, and float32 changes a winner about
once in a million. The hash is `noise.py`'s own.
"""

from __future__ import annotations

import numpy as np
import torch

from covey.runtime.noise import HASH_BITS, Index, Purpose, hash_tokens, keys, row_words, token_words
from covey.runtime.settings import SettingsTable


def noise_ahead(table: SettingsTable, slots: Index, positions: Index, depth: int, vocab: int) -> torch.Tensor | None:
    """[depth, rows, vocab]: the noise of row r's positions from `positions[r]` on, zero for greedy rows; None when all
    are greedy."""
    hot = np.flatnonzero(table.temperature[slots] > 0)
    if not len(hot):
        return None
    steps = positions[hot] + np.arange(depth, dtype=np.int64)[:, None]
    seeds = np.broadcast_to(table.seed[slots[hot]], steps.shape).reshape(-1)
    words = row_words(keys(seeds, steps.reshape(-1), Purpose.COUPLED))
    hashes = torch.empty(len(seeds), vocab, dtype=torch.int32)
    hash_tokens(token_words(vocab, hashes.device), words, hashes, torch.empty_like(hashes))
    survival = hashes.float().add_(0.5).mul_(-(2.0**-HASH_BITS))
    noise = survival.log1p_().neg_().log_().neg_().view(depth, len(hot), vocab)
    if len(hot) == len(slots):
        return noise
    everyone = torch.zeros(depth, len(slots), vocab)
    everyone[:, torch.from_numpy(hot)] = noise
    return everyone
