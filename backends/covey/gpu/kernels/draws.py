"""Draws from the race in `race.py`: for all rows of a target's pass at once, or for one step of a drafter's chain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from covey.gpu.kernels.race import TILE, Race, row_outcome
from covey.noise.noise import Index, Reals, Words, row_words

_REPORTED = 4  # numbers per row, as float64, which holds ids exactly, so that one copy brings all


@triton.jit(do_not_specialize=["reports_stride"], do_not_specialize_on_alignment=["wanted"])
def report_draws(
    best_values,
    best_tokens,
    scores,
    tokens,
    sums,
    splits,
    logits,
    stride,
    wanted,
    reports,
    reports_stride,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    best, best_token, _, winner, log_total = row_outcome(
        best_values, best_tokens, scores, tokens, sums, row, splits, SPLITS
    )
    summed = (tl.abs(best) < float("inf")) & (tl.load(wanted + row) != 0)
    value = tl.load(logits + row * stride + winner, mask=summed, other=0.0).to(tl.float32)
    logprob = tl.where(summed, value - tl.where(summed, best, 0.0) - log_total, float("nan"))
    tl.store(reports + row, best_token.to(tl.float64))
    tl.store(reports + reports_stride + row, best.to(tl.float64))
    tl.store(reports + 2 * reports_stride + row, winner.to(tl.float64))
    tl.store(reports + 3 * reports_stride + row, logprob.to(tl.float64))


@triton.jit(do_not_specialize=["step"])  # compiled once for all steps
def take_winners(
    best_values,
    best_tokens,
    scores,
    tokens,
    sums,
    splits,
    taken,
    taken_stride,
    taken_scores,
    taken_scores_stride,
    next_tokens,
    step,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    best, _, score, winner, log_total = row_outcome(best_values, best_tokens, scores, tokens, sums, row, splits, SPLITS)
    share = tl.where(tl.abs(best) < float("inf"), score.to(tl.float32) - log_total, float("nan"))
    tl.store(taken + row * taken_stride + step, winner)
    tl.store(taken_scores + row * taken_scores_stride + step, share)
    tl.store(next_tokens + row, winner)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The draws by row. `best` is the token with the largest logit, `best_values` that logit (NaN if any logit is NaN).
    `winners` are the tokens that win the race with noise; they equal `best` if the row is greedy or its best value is
    not finite. `logprobs` are those of the winners, or NaN if not wanted."""

    best: Index
    best_values: Reals
    winners: Index
    logprobs: Reals


class DeviceDraw:
    """Draws for up to `rows` rows at once. Owns the kernels' inputs and outputs: `give` and `results` exchange them
    with the host, `launch` does not. One draw at a time."""

    @torch.inference_mode(False)  # tensors made in that mode can be written only there, and these are kept
    def __init__(self, rows: int, vocab: int, device: torch.device, tile: int = TILE) -> None:
        self._rows = rows
        self._race = Race(rows, vocab, device, tile)
        self._given = torch.empty(6 * rows, dtype=torch.int32, device=device)  # one buffer, so one copy
        self._staged = torch.empty(6 * rows, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._temperatures = self._given[: 2 * rows].view(torch.float64)
        self._words = self._given[2 * rows : 5 * rows].view(3, rows)
        self._wanted = self._given[5 * rows :]
        self._reports = torch.empty(_REPORTED, rows, dtype=torch.float64, device=device)

    def give(self, temperatures: Reals, row_keys: Words, wanted: npt.NDArray[np.bool_]) -> None:
        """Copy the next rows' temperatures (0: greedy), keys, and whether log-probabilities are wanted. Does not wait.
        Call it only after the last draw's results are there, or it may overwrite inputs that are still being read."""
        rows, most = len(temperatures), self._rows
        given = self._staged.numpy()
        given[: 2 * most].view(np.float64)[:rows] = temperatures
        given[2 * most : 5 * most].reshape(3, most)[:, :rows] = row_words(row_keys)[:, :, 0]
        given[5 * most :][:rows] = wanted
        self._given.copy_(self._staged, non_blocking=True)

    def launch(self, logits: Tensor) -> None:
        """Draw from `logits` [rows, vocab]; see `Race.launch`."""
        self._race.launch(logits, self._temperatures, self._words, self._wanted)
        if len(logits):
            report_draws[(len(logits),)](
                *self._race.partials,
                self._race.splits,
                logits,
                logits.stride(0),
                self._wanted,
                self._reports,
                self._reports.stride(0),
                SPLITS=self._race.padded_splits,
            )

    def results(self, rows: int) -> Drawn:
        """Wait for the last launch and return what it drew for its first `rows` rows."""
        best, best_values, winners, logprobs = self._reports.cpu().numpy()[:, :rows]
        return Drawn(best.astype(np.int64), best_values, winners.astype(np.int64), logprobs)


class ChainDraw:
    """Draws a drafter's own tokens step by step, without the host. Owns the memory between its kernels."""

    def __init__(self, rows: int, vocab: int, device: torch.device, tile: int = TILE) -> None:
        self._race = Race(rows, vocab, device, tile)

    def launch(
        self,
        logits: Tensor,
        temperatures: Tensor,
        words: Tensor,
        step: int,
        tokens: Tensor,
        scores: Tensor,
        next_tokens: Tensor,
    ) -> None:
        """Write each row's winner into column `step` of `tokens` [rows, depth] and into `next_tokens` [rows]. Write the
        log of its share (see `drafters.choosing`) into `scores` [rows, depth], float32. `temperatures` are float64, 0
        for greedy; `words` [3, rows] are this step's. Top-k, top-p and the like are ignored. A row with a NaN or no
        finite best value takes an arbitrary token with a score of NaN."""
        self._race.launch(logits, temperatures, words, None)
        if len(logits):
            take_winners[(len(logits),)](
                *self._race.partials,
                self._race.splits,
                tokens,
                tokens.stride(0),
                scores,
                scores.stride(0),
                next_tokens,
                step,
                SPLITS=self._race.padded_splits,
            )
