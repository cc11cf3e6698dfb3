"""Which tokens a neural drafter takes from its logits, for all steps of one call under the coupled rule.

A child is ranked by log q + noise, by log q when greedy. Its score is the log of its share of exp(log q + noise) over
all tokens: q's own probability when greedy and, when sampling, how clearly it wins the race that the target will run,
which says more about acceptance than how likely it was before the noise was known. Penalties are ignored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from covey.runtime.drafters.ahead import noise_ahead
from covey.runtime.noise import Index, Reals
from covey.runtime.proposals import propose
from covey.runtime.settings import SettingsTable
from covey.types import Floats


class Choosing:
    """The race of one call: rows with settings `slots` (see `SettingsTable`) propose from `positions` on."""

    def __init__(self, table: SettingsTable, slots: Index, positions: Index, depth: int, vocab: int) -> None:
        self._table = table
        self._slots = slots
        self._positions = positions
        self._noise = noise_ahead(table, slots, positions, depth, vocab)
        hot = table.temperature[slots]
        self._scale: torch.Tensor | None = None
        if self._noise is not None and bool((hot != 1.0).any()):
            self._scale = torch.from_numpy((1.0 / np.where(hot > 0, hot, 1.0)).astype(np.float32))[:, None]
        self._truncated = np.flatnonzero(table.truncated[slots])

    def best(self, logits: torch.Tensor, step: int) -> tuple[Index, Floats]:
        """The first rows' best tokens, and their scores."""
        rows = len(logits)
        raced = self._raced(logits, step, 1)
        tokens = raced.numpy().argmax(axis=1)
        truncated = self._truncated[: np.searchsorted(self._truncated, rows)]
        if len(truncated):
            kept = self._kept(logits, truncated, tokens[truncated, None], 1)[:, 0]
            lost = truncated[~kept]
            if len(lost):
                exact = propose(
                    logits[torch.from_numpy(lost)], self._table, self._slots[lost], self._positions[lost] + step, 1
                )
                tokens[lost] = np.maximum(exact.tokens[:, 0], 0)
        shares = torch.softmax(raced, -1).numpy()
        return tokens, np.log(shares[np.arange(rows), tokens] + 1e-30)

    def top(self, logits: torch.Tensor, step: int, width: int, lanes: int) -> tuple[Index, Floats]:
        """The best `width` tokens of every lane as [rows * lanes, width], best first, and their scores; one that the
        row's settings leave out has score -inf."""
        raced = self._raced(logits, step, lanes)
        best = raced.topk(min(width, raced.shape[1]), dim=1)
        tokens = best.indices.numpy()
        scores = (best.values - raced.logsumexp(1, keepdim=True)).numpy()
        rows = len(logits) // lanes
        truncated = self._truncated[: np.searchsorted(self._truncated, rows)]
        if len(truncated):
            which = (truncated[:, None] * lanes + np.arange(lanes)).reshape(-1)
            kept = self._kept(logits, which, tokens[which], lanes)
            scores[which] = np.where(kept, scores[which], -np.inf)
        return tokens, scores

    def _raced(self, logits: torch.Tensor, step: int, lanes: int) -> torch.Tensor:
        if self._noise is None:
            return logits
        rows = len(logits) // lanes
        noise = self._noise[step, :rows]
        scale = None if self._scale is None else self._scale[:rows]
        if lanes > 1:
            noise = noise.repeat_interleave(lanes, 0)
            scale = None if scale is None else scale.repeat_interleave(lanes, 0)
        return noise + logits if scale is None else torch.addcmul(noise, logits, scale)

    def _kept(self, logits: torch.Tensor, which: Index, tokens: Index, lanes: int) -> npt.NDArray[np.bool_]:
        """Whether top-k, top-p and min-p leave each of the lanes' candidate tokens in."""
        table, slot = self._table, self._slots[which // lanes]
        values: Reals = logits[torch.from_numpy(which)].numpy()
        weights = np.exp((values - values.max(axis=1, keepdims=True)) / table.temperature[slot, None])
        mine = np.take_along_axis(values, tokens, 1)
        top_k, top_p, log_min_p = table.top_k[slot], table.top_p[slot], table.log_min_p[slot]
        total = weights.sum(axis=1)
        for row in np.flatnonzero((top_k > 0) & (top_k < values.shape[1])):
            total[row] = np.partition(weights[row], -top_k[row])[-top_k[row] :].sum()
        kept: npt.NDArray[np.bool_] = (
            np.log(np.maximum(np.take_along_axis(weights, tokens, 1), 1e-300)) >= log_min_p[:, None]
        )
        for place in range(tokens.shape[1]):
            above = values > mine[:, place, None]
            kept[:, place] &= (top_k == 0) | (above.sum(axis=1) < top_k)
            kept[:, place] &= (weights * above).sum(axis=1) < top_p * total
        return kept
