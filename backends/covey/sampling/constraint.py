"""Masks the tokens that a grammar does not allow, on the target and on drafters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.noise.arrays import Logits, beside, copied
from covey.noise.noise import Index
from covey.text.grammar import Words


def constrained(logits: Logits, rows: Index, allowed: Sequence[Words | None]) -> Logits:
    """Return logits with -inf, in the given rows, for each token that is not allowed; None allows nothing. `allowed`
    may name more tokens than there are logits."""
    vocab = logits.shape[1]
    nothing = np.zeros(-(-vocab // 32), np.uint32)
    words = np.stack([nothing if each is None else each[: len(nothing)] for each in allowed])
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=vocab)
    where = beside(rows, logits)
    logits = copied(logits)
    part = logits[where]
    part[beside(bits == 0, logits)] = -np.inf
    logits[where] = part
    return logits
