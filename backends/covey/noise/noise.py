"""The one implementation of the noise that decides every draw, and of the race that it decides.

Noise is a function of only (seed, position, round, purpose, token). The host derives keys in 64 bits. Tokens are hashed
in wrapping 32-bit integers, on the device of the logits. Logarithms are computed for the few tokens that can win, in
float64, with only additions, multiplications and divisions, each rounded once. The host computes them, or kernels that
repeat its steps (`kernels/race.py`). So the noise has the same bits on every device, with any threads and in any batch.

A token's noise is Gumbel's: -log(-log(1 - v)) with v = (h + 0.5) / 2^31, h being its 31-bit hash. It lies within
(-3.1, 22.2), so a token less likely than about 2^-32 of the best is never drawn. The token with the largest
logit / temperature + noise wins, the lowest id among equals. This module knows nothing of settings or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from covey.noise.arrays import Logits, beside, host, largest_of, of_type, single, words_like

if TYPE_CHECKING:
    import torch

Words = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int64]
# From logits, the tokens' words, the rows' words and limits (`race`): the places of the tokens that can win, row by
# row, and their hashes.
Contenders: TypeAlias = Callable[[Logits, Any, npt.NDArray[np.int32], Any], "tuple[Index, npt.NDArray[np.int32]]"]
Reals = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD1B54A32D192ED03)
HASH_BITS = 31
_CHUNK_ELEMENTS = 1 << 16  # hash, scratch and logits of a chunk fit a core's L2 cache
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
SLACK = 4096.0  # 2^23 is an octave: far above the bound's float32 error, and too small to keep many more tokens
STEEPEST = 1e30  # limits the slope for tiny temperatures: a flatter bound only keeps more tokens


_compiled: Contenders | None = None


def use(contenders: Contenders) -> None:
    """Find the tokens that can win on the host by compiled code, which gives the same ones several times faster."""
    global _compiled  # noqa: PLW0603 - one for the process, like the code
    _compiled = contenders


class Purpose(IntEnum):
    """The purpose of a stream of noise; streams of different purposes are independent."""

    COUPLED = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4


def _scramble(words: Words) -> Words:
    """Apply splitmix64's finaliser."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def seed_words(seeds: Words) -> Words:
    """Return seeds, which are often small and adjacent, spread over 64 bits, as `keys` needs them."""
    return _scramble(np.asarray(seeds, np.uint64) + _GOLDEN)


def keys(
    spread: Words, positions: npt.NDArray[np.int64], purpose: Purpose, rounds: npt.NDArray[np.int64] | None = None
) -> Words:
    """Return a key per row. `positions` are below 2^32, `rounds` below 2^24, so no counter repeats within a seed."""
    counter = positions.astype(np.uint64)
    if rounds is not None:
        counter |= rounds.astype(np.uint64) << np.uint64(32)
    if purpose:
        counter |= np.uint64(purpose << 56)
    counter *= _GOLDEN
    counter += spread
    return _scramble(counter)


def uniforms(row_keys: Words) -> Reals:
    """Return one uniform in [0, 1) per key."""
    return (row_keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=8)
def token_words(vocab: int, device: torch.device | None = None) -> Any:
    """Return a 32-bit word per token: an array, or a tensor on a device."""
    ids = np.arange(vocab, dtype=np.uint32)
    ids ^= ids >> np.uint32(16)
    ids *= np.uint32(0x7FEB352D)
    ids ^= ids >> np.uint32(15)
    ids *= np.uint32(0x846CA68B)
    ids ^= ids >> np.uint32(16)
    words = ids.view(np.int32)
    if device is None:
        return words
    import torch

    return torch.from_numpy(words).to(device)


def row_words(row_keys: Words) -> npt.NDArray[np.int32]:
    """Return three 32-bit words per key, the last two odd, as [3, rows, 1]."""
    second = _scramble(row_keys + _SECOND)
    words = np.empty((3, len(row_keys), 1), np.uint32)
    words[0, :, 0] = row_keys
    words[1, :, 0] = row_keys >> np.uint64(32)
    words[2, :, 0] = second
    words[1:] |= np.uint32(1)
    return words.view(np.int32)


def hash_tokens(tokens: Any, words: Any, out: Any, scratch: Any) -> None:
    """Write 31 uniform bits per row and token into `out`; all arguments are arrays, or all are tensors. The arithmetic
    shift merges each value with its complement, which leaves 31 of the 32 bits. Odd multiplication keeps them uniform,
    and the mask selects them."""
    out[...] = tokens
    out ^= words[0]
    out *= words[1]
    scratch[...] = out
    scratch >>= 15
    out ^= scratch
    out *= words[2]
    out &= 0x7FFFFFFF


def _log(values: Reals) -> Reals:
    """Return the natural logarithm with relative error 1e-11, computed only by correctly rounded operations."""
    mantissa, exponent = np.frexp(values)
    low = mantissa < 0.7071067811865476
    mantissa *= 1.0 + low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = z * (2.0 / 13.0)
    for denominator in (11.0, 9.0, 7.0, 5.0, 3.0):
        series += 2.0 / denominator
        series *= z
    series += 2.0
    series *= s
    series += (exponent - low) * LN_2
    return series


def gumbel(hashes: npt.NDArray[np.int32]) -> Reals:
    """Return the noise of tokens with these hashes."""
    survival = (hashes + 0.5) * -(2.0**-HASH_BITS)
    survival += 1.0
    return -_log(-_log(survival))


@dataclass(frozen=True, slots=True)
class Entrants:
    """The tokens of a race that can win, ordered by row, then id. `values` are their logits. A score is
    (logit - the row's best logit) / temperature + noise."""

    rows: Index
    tokens: Index
    values: Reals
    scores: Reals

    def only(self, chosen: npt.NDArray[np.bool_]) -> Entrants:
        return Entrants(self.rows[chosen], self.tokens[chosen], self.values[chosen], self.scores[chosen])

    def renumbered(self, numbers: Index) -> Entrants:
        """Return the entrants with new row numbers, in the same order, without rows numbered -1."""
        rows = numbers[self.rows]
        kept = np.flatnonzero(rows >= 0)
        return Entrants(rows[kept], self.tokens[kept], self.values[kept], self.scores[kept])


def best_tokens(logits: Logits) -> tuple[Index, Reals]:
    """Return each row's best token, the lowest id among equals, and its logit; NaN if the row has a NaN."""
    if isinstance(logits, np.ndarray):
        best = logits.argmax(axis=1)
        return best, logits[np.arange(len(best)), best].astype(np.float64)
    index = logits.argmax(dim=1)
    values = logits.gather(1, index.unsqueeze(1)).squeeze(1)
    found, best_values = host(index), host(values).astype(np.float64)
    if logits.device.type == "cpu":
        found = logits.numpy().argmax(axis=1)  # torch may not return the first of equals
    return found, best_values


def leading_tokens(logits: Logits, width: int) -> tuple[Index, Reals]:
    """Return the tokens and logits of each row's `width` largest logits as [rows, width], descending, the lowest id
    first among equals. On a GPU, the last place may hold any of equal ids. The first is always the best token."""
    width = min(width, logits.shape[1])
    if isinstance(logits, np.ndarray):
        places, largest = largest_of(logits, width)
        return places, largest.astype(np.float64)
    best, best_values = best_tokens(logits)
    if width == 1:
        return best[:, None], best_values[:, None]
    top = logits.topk(width, dim=1)
    tokens, values = host(top.indices), host(top.values).astype(np.float64)
    order = np.lexsort((tokens, -values), axis=1)
    tokens, values = np.take_along_axis(tokens, order, 1), np.take_along_axis(values, order, 1)
    lost = tokens[:, 0] != best
    tokens[lost, 1:], values[lost, 1:] = tokens[lost, :-1], values[lost, :-1]
    tokens[lost, 0], values[lost, 0] = best[lost], best_values[lost]
    return tokens, values


def race(
    logits: Logits,
    leaders: Index,
    leader_values: Reals,
    temperatures: Reals,
    row_keys: Words,
    prune: bool = True,
) -> Entrants:
    """Return every token that could win: its score is not below the worst of the row's `leaders` ([rows, w], best
    first, from `leading_tokens`). So these are each row's w best and a few more. `prune` False keeps all tokens.

    A token's noise is at most -log(v), so to reach a bar it needs log2(v) <= (x - bar) * log2(e). The bit pattern of
    v as a float32, read as an integer, bounds log2(v) from below. So the dense part needs no logarithm.
    """
    rows, vocab = logits.shape
    on_host = isinstance(logits, np.ndarray)
    words = row_words(row_keys)
    centres = leader_values[:, 0]
    slopes, bounds = _limits(leaders, leader_values, temperatures, words, vocab if prune else 0)
    table = token_words(vocab, None if on_host else logits.device)
    columns = beside(np.stack((centres, slopes, bounds))[:, :, None], logits)
    centre, slope, bound = of_type(columns[0], logits), single(columns[1]), single(columns[2])
    words = beside(words, logits)
    if prune and on_host and _compiled is not None and logits.dtype == np.float32:
        flat, hashed = _compiled(logits, table, words, np.stack((centre, slope, bound)))
        return _entrants(flat, hashed, logits.reshape(-1)[flat], centres, temperatures, vocab)
    step = max(1, _CHUNK_ELEMENTS // vocab) if on_host else max(1, rows)
    pieces = []
    for start in range(0, rows, step):
        some = slice(start, start + step)
        part = logits[some]
        hashes, scratch = words_like(part), words_like(part)
        hash_tokens(table, words[:, some], hashes, scratch)
        octaves = scratch.view(slope.dtype)
        octaves[...] = hashes
        octaves = single(scratch)  # the bits of 2^e (1 + f), read as an integer: 2^23 (127 + e + f)
        with np.errstate(over="ignore", invalid="ignore"):
            limits = single(part - centre[some])
            limits *= slope[some]
            limits += bound[some]
        picked = np.flatnonzero(host(octaves <= limits))
        at = beside(picked, part)
        pieces.append((picked + start * vocab, host(hashes.reshape(-1)[at]), host(part.reshape(-1)[at])))
    flat, hashed, values = (
        pieces[0] if len(pieces) == 1 else (np.concatenate(part) for part in zip(*pieces, strict=True))
    )
    return _entrants(flat, hashed, values, centres, temperatures, vocab)


def _entrants(
    flat: Index, hashed: npt.NDArray[np.int32], values: Any, centres: Reals, temperatures: Reals, vocab: int
) -> Entrants:
    row_of, token = np.divmod(flat, vocab)
    values = values.astype(np.float64)
    scores = gumbel(hashed)
    scores += (values - centres[row_of]) / temperatures[row_of]
    return Entrants(row_of, token, values, scores)


def _limits(
    leaders: Index, leader_values: Reals, temperatures: Reals, words: npt.NDArray[np.int32], vocab: int
) -> tuple[Reals, Reals]:
    """Return slope and height of each row's upper limit of 2^23 (127 + log2(v 2^31)); no limit if `vocab` is 0."""
    octave = 2.0**23
    if not vocab:
        return np.zeros(len(leaders)), np.full(len(leaders), STEEPEST)
    hashes = np.empty(leaders.shape, np.int32)
    hash_tokens(token_words(vocab)[leaders], words, hashes, np.empty_like(hashes))
    tail = np.log1p((hashes + 0.5) * -(2.0**-HASH_BITS))  # `SLACK` also covers the error of these logarithms
    scores = (leader_values - leader_values[:, :1]) / temperatures[:, None] - np.log(-tail)
    slopes = np.minimum(octave * LOG2_E / temperatures, STEEPEST)
    return slopes, (127.0 + HASH_BITS - scores.min(axis=1) * LOG2_E) * octave + SLACK


def winners(entrants: Entrants, rows: int) -> Index:
    """Return each row's token with the best score, the lowest id among equals. Every row must have an entrant."""
    starts = np.searchsorted(entrants.rows, np.arange(rows))
    top = np.maximum.reduceat(entrants.scores, starts)
    leading = np.flatnonzero(entrants.scores == top[entrants.rows])[::-1]
    won = np.empty(rows, np.int64)
    won[entrants.rows[leading]] = entrants.tokens[leading]  # the last assignment wins: the lowest id
    return won
