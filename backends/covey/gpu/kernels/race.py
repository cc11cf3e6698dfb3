"""The race of `covey.noise.noise` on a GPU, bit for bit: finds each row's best token, then the winner with noise.

Two passes over the logits, each a grid of (rows, splits), leave one partial result per split. The caller launches a
third, small kernel that reduces those (`draws.py`). The second pass bounds every token's noise in float32, as the CPU
does. It computes the exact noise, in float64, only for tiles in which a token could reach the best token's score. A
fused multiply-add rounds once where the CPU rounds twice, so kernels that call `gumbel` are compiled without it
(`ROUNDED`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from covey.noise import noise

TILE = 2048  # tokens per program
PART = 512  # of them at a time in float64: more would take registers and so keep other programs waiting
ROUNDED = {"enable_fp_fusion": False}

_LN_2 = tl.constexpr(noise.LN_2)
_LOG2_E = tl.constexpr(noise.LOG2_E)
_SLACK = tl.constexpr(noise.SLACK)
_STEEPEST = tl.constexpr(noise.STEEPEST)
_OCTAVE = tl.constexpr(2.0**23)
_TOP = tl.constexpr(127.0 + noise.HASH_BITS)
_GRAIN = tl.constexpr(2.0**-noise.HASH_BITS)
_HASHES = tl.constexpr(2**noise.HASH_BITS - 1)
_NOBODY = tl.constexpr(2**31 - 1)  # larger than any token id


@triton.jit
def token_hash(ids, first, second, third):
    """Return 31 uniform bits per token under a row's three words: `noise.token_words`, then `noise.hash_tokens`."""
    x = ids.to(tl.uint32)
    x ^= x >> 16
    x = tl.mul(x, 0x7FEB352D, sanitize_overflow=False)
    x ^= x >> 15
    x = tl.mul(x, 0x846CA68B, sanitize_overflow=False)
    x ^= x >> 16
    h = tl.mul(x.to(tl.int32, bitcast=True) ^ first, second, sanitize_overflow=False)
    h ^= h >> 15  # the number is signed, so this shift is arithmetic
    return tl.mul(h, third, sanitize_overflow=False) & _HASHES


@triton.jit
def _log(values):
    """Return `noise._log` of positive normal numbers."""
    bits = values.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1022
    fraction = bits & 0x000FFFFFFFFFFFFF
    mantissa = (fraction | 0x3FE0000000000000).to(tl.float64, bitcast=True)
    low = fraction < 0x6A09E667F3BCD  # of the root of 1/2; as a float, this constant may be rounded to float32
    mantissa = tl.where(low, mantissa + mantissa, mantissa)
    exponent = tl.where(low, exponent - 1, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = z * (2.0 / 13.0)
    series = (series + 2.0 / 11.0) * z
    series = (series + 2.0 / 9.0) * z
    series = (series + 2.0 / 7.0) * z
    series = (series + 2.0 / 5.0) * z
    series = (series + 2.0 / 3.0) * z
    series = (series + 2.0) * s
    return series + exponent.to(tl.float64) * _LN_2


@triton.jit
def gumbel(hashes):
    """Return `noise.gumbel`: the noise of tokens with these hashes, in float64."""
    return -_log(-_log((hashes.to(tl.float64) + 0.5) * -_GRAIN + 1.0))


@triton.jit
def _tail(hashes):
    """Return exp(-noise) in float32, precise enough for shares: -log(1 - v), as a series if 1 - v would lose v's
    bits."""
    v = (hashes.to(tl.float32) + 0.5) * _GRAIN
    rest = ((hashes ^ _HASHES).to(tl.float32) + 0.5) * _GRAIN
    return tl.where(v < 0.015625, v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25))), -tl.log(rest))


@triton.jit
def _may_win(behind, hashes, slope, bound):
    """Return whether tokens `behind` the best can reach the score that gave `slope` and `bound`; see `noise.race`."""
    octaves = hashes.to(tl.float32).to(tl.int32, bitcast=True).to(tl.float32)
    return octaves <= behind * slope + bound


@triton.jit
def leader(values, ids):
    """Return the largest value and the lowest id that has it. If any value is NaN, return NaN and the best id of the
    other values."""
    valid = values == values
    ordered = tl.where(valid, values, -float("inf"))
    top = tl.max(ordered, 0)
    first = tl.min(tl.where(ordered == top, ids, _NOBODY), 0)
    return tl.where(tl.min(valid.to(tl.int32), 0) == 1, top, float("nan")), first


@triton.jit
def row_leader(values, ids, row, splits, SPLITS: tl.constexpr):
    """Return the largest value of a row's splits and its token, like `leader`."""
    split = tl.arange(0, SPLITS)
    at = row * splits + split
    return leader(
        tl.load(values + at, mask=split < splits, other=-float("inf")),
        tl.load(ids + at, mask=split < splits, other=_NOBODY),
    )


@triton.jit
def find_best(logits, stride, vocab, values, tokens, splits, TILE: tl.constexpr):
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = split * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row * stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    value, token = leader(x, ids)
    tl.store(values + row * splits + split, value)
    tl.store(tokens + row * splits + split, token)


@triton.jit(do_not_specialize=["words_stride"], do_not_specialize_on_alignment=["temperatures", "words", "wanted"])
def run_race(
    logits,
    stride,
    vocab,
    temperatures,
    words,
    words_stride,
    wanted,
    best_values,
    best_tokens,
    scores,
    tokens,
    sums,
    splits,
    TILE: tl.constexpr,
    PART: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARES: tl.constexpr,
):
    """Write each split's best score and its token, or -inf and no token if nothing can beat the row's best. Also write
    the split's sum of exp(logit - best) for `wanted` rows; with SHARES, the sum of exp(score) for all rows. Scores are
    relative to the best logit."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, best_token = row_leader(best_values, best_tokens, row, splits, SPLITS)
    finite = tl.abs(best) < float("inf")
    temperature = tl.load(temperatures + row)
    hot = finite & (temperature > 0.0)
    summed = finite
    if not SHARES:
        summed = finite & (tl.load(wanted + row) != 0)
    score = tl.full((), -float("inf"), tl.float64)
    winner = tl.full((), _NOBODY, tl.int32)
    total = tl.full((), 0.0, tl.float32)
    if hot | summed:
        ids = split * TILE + tl.arange(0, TILE)
        x = tl.load(logits + row * stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
        behind = x - best
        if hot:
            first = tl.load(words + row)
            second = tl.load(words + words_stride + row)
            third = tl.load(words + 2 * words_stride + row)
            inverse = 1.0 / temperature
            bar = gumbel(token_hash(best_token, first, second, third))
            bound = ((bar * -_LOG2_E + _TOP) * _OCTAVE + _SLACK).to(tl.float32)
            slope = tl.minimum(inverse * (_OCTAVE * _LOG2_E), _STEEPEST).to(tl.float32)
            hashes = token_hash(ids, first, second, third)
            if tl.max(_may_win(behind, hashes, slope, bound).to(tl.int32), 0) == 1:
                for start in tl.range(0, TILE, PART):
                    part = split * TILE + start + tl.arange(0, PART)
                    value = tl.load(logits + row * stride + part, mask=part < vocab, other=-float("inf")).to(tl.float64)
                    hashed = token_hash(part, first, second, third)
                    exact = gumbel(hashed) + (value - best.to(tl.float64)) / temperature
                    top, token = leader(exact, part)
                    winner = tl.where(top > score, token, winner)
                    score = tl.maximum(top, score)
            if SHARES:
                weights = tl.exp(behind * tl.minimum(inverse, _STEEPEST).to(tl.float32)) / _tail(hashes)
                total = tl.sum(weights, 0)
        if summed & ((not SHARES) | (not hot)):
            total = tl.sum(tl.exp(behind), 0)
    at = row * splits + split
    tl.store(scores + at, score)
    tl.store(tokens + at, winner)
    tl.store(sums + at, total)


@triton.jit
def row_outcome(best_values, best_tokens, scores, tokens, sums, row, splits, SPLITS: tl.constexpr):
    """Join all splits. Return the best value and its token, the winner's score and the winner, and the logarithm of the
    sum. If nothing was raced, the winner is the best token and its score 0. If nothing was summed, the logarithm is
    0."""
    best, best_token = row_leader(best_values, best_tokens, row, splits, SPLITS)
    score, winner = row_leader(scores, tokens, row, splits, SPLITS)
    raced = score > -float("inf")
    split = tl.arange(0, SPLITS)
    total = tl.sum(tl.load(sums + row * splits + split, mask=split < splits, other=0.0), 0)
    log_total = tl.log(tl.where(total > 0.0, total, 1.0))
    return best, best_token, tl.where(raced, score, 0.0), tl.where(raced, winner, best_token), log_total


class Race:
    """Owns the partial results of up to `rows` rows. The number of splits does not change any token."""

    def __init__(self, rows: int, vocab: int, device: torch.device, tile: int = TILE) -> None:
        self._vocab, self._tile = vocab, tile
        self.splits = triton.cdiv(vocab, tile)
        shape = (rows, self.splits)
        self._best_values = torch.empty(shape, dtype=torch.float32, device=device)
        self._best_tokens = torch.empty(shape, dtype=torch.int32, device=device)
        self._scores = torch.empty(shape, dtype=torch.float64, device=device)
        self._tokens = torch.empty(shape, dtype=torch.int32, device=device)
        self._sums = torch.empty(shape, dtype=torch.float32, device=device)

    @property
    def partials(self) -> tuple[Tensor, ...]:
        """Return the first arguments of `row_outcome`."""
        return self._best_values, self._best_tokens, self._scores, self._tokens, self._sums

    @property
    def padded_splits(self) -> int:
        """Return the last argument of `row_outcome`."""
        padded: int = triton.next_power_of_2(self.splits)
        return padded

    def launch(self, logits: Tensor, temperatures: Tensor, words: Tensor, wanted: Tensor | None) -> None:
        """Run both passes over `logits` [rows, vocab], whose columns must be adjacent. `temperatures` are float64, 0 if
        greedy; `words` [3, rows] are `noise.row_words`; `wanted` is 1 for rows to sum, or None to sum shares."""
        rows, vocab = logits.shape
        capacity = len(self._scores)
        if vocab > self._vocab or rows > capacity or logits.stride(1) != 1 or logits.dtype == torch.float64:
            raise ValueError(
                f"logits are {tuple(logits.shape)} with strides {logits.stride()}, {logits.dtype}; at most "
                f"[{capacity}, {self._vocab}] with adjacent columns and at most float32 can be raced"
            )
        if not rows:
            return
        grid = (rows, self.splits)
        best = (self._best_values, self._best_tokens)
        find_best[grid](logits, logits.stride(0), vocab, *best, self.splits, TILE=self._tile)
        run_race[grid](
            logits,
            logits.stride(0),
            vocab,
            temperatures,
            words,
            words.stride(0),
            temperatures if wanted is None else wanted,
            *self.partials,
            self.splits,
            TILE=self._tile,
            PART=min(PART, self._tile),
            SPLITS=self.padded_splits,
            SHARES=wanted is None,
            **ROUNDED,
        )
