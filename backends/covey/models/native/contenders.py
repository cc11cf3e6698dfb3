"""Finds the tokens that can win a race: the dense part of `covey.noise.noise.race`, with the same bits."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Floats, Ints
from covey.models.native.words import bits_of, compiled
from covey.noise.noise import Index

BLOCK = 512  # tokens that are compared before any is written down


def contenders(logits: Floats, tokens: Ints, words: Ints, limits: Floats) -> tuple[Index, Ints]:
    """Implements `covey.noise.noise.Contenders`."""
    places, hashes = np.empty(logits.size, np.int64), np.empty(logits.size, np.int32)
    found = search(logits, tokens, words, limits, places, hashes)
    return places[:found].copy(), hashes[:found].copy()


@compiled
def search(logits, tokens, words, limits, places, hashes):
    """Write the tokens' places in the logits, and their hashes. Return how many there are."""
    found, (rows, vocab) = 0, logits.shape
    near = np.zeros(BLOCK, np.int32)
    for row in range(rows):
        centre, slope, bound = limits[0, row, 0], limits[1, row, 0], limits[2, row, 0]
        word, factor, other = words[0, row, 0], words[1, row, 0], words[2, row, 0]
        for first in range(0, vocab, BLOCK):
            x, ids, count = logits[row, first : first + BLOCK], tokens[first : first + BLOCK], np.int32(0)
            for i in range(len(x)):
                octave = np.float32(bits_of(np.float32(hashed(ids[i], word, factor, other))))
                near[i] = octave <= (x[i] - centre) * slope + bound
                count = np.int32(count | near[i])
            for i in range(len(x) if count else 0):
                if near[i]:
                    places[found] = row * vocab + first + i
                    hashes[found] = hashed(ids[i], word, factor, other)
                    found += 1
    return found


@compiled
def hashed(token, word, factor, other):
    """Return a token's hash as `covey.noise.noise.hash_tokens` does."""
    mixed = np.int32((token ^ word) * factor)
    return np.int32(np.int32((mixed ^ (mixed >> np.int32(15))) * other) & np.int32(0x7FFFFFFF))
