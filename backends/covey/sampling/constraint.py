"""Leaves in the tokens that a grammar allows, on the target and on drafters alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covey.grammar import Words
from covey.sampling.noise import Index


def constrained(logits: Tensor, rows: Index, allowed: Sequence[Words | None]) -> Tensor:
    """Logits of which the given rows have -inf for each token that is not allowed; None allows nothing."""
    vocab = logits.shape[1]
    nothing = np.zeros(-(-vocab // 32), np.uint32)
    words = np.stack([nothing if each is None else each for each in allowed])
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=vocab)
    out = torch.from_numpy(bits == 0).to(logits.device)
    where = torch.from_numpy(rows).to(logits.device)
    logits = logits.clone(memory_format=torch.contiguous_format)
    logits[where] = logits[where].masked_fill(out, -torch.inf)
    return logits
