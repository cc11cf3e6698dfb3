"""Top-k, then top-p, then min-p: which tokens a row may draw.

Tokens are ordered by logit, the lowest id first among equals. top_k keeps the first k; top_p keeps a token if those
before it hold less than that share of what top_k kept; min_p keeps what is at least that fraction of the best. The
best token always stays. A draw needs no sorted row: its winner is checked, and if it is cut, so is all that comes
after it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from covey.runtime.noise import Entrants, Index, Reals, take, where_true, winners
from covey.runtime.settings import SettingsTable
from torch import Tensor

_DOUBT = 1e-4  # relative; far above the error of a float32 sum of exponentials


def draw_kept(
    logits: Tensor, entrants: Entrants, best: Index, best_values: Reals, table: SettingsTable, slots: Index
) -> Index:
    """The winner of each row among the tokens that its settings keep."""
    rows = len(slots)
    won = winners(entrants, rows)
    tokens = entrants.tokens[won]
    check = _Check(logits, best_values, table, slots)
    pending = np.flatnonzero(table.truncated[slots] & (tokens != best))
    alive = np.ones(len(entrants.rows), np.bool_)
    while len(pending):
        cut = pending[~check.kept(pending, tokens[pending], entrants.values[won[pending]])]
        if not len(cut):
            break
        lowest = np.full(rows, -np.inf)
        lowest_token = np.full(rows, logits.shape[1])
        lowest[cut] = entrants.values[won[cut]]
        lowest_token[cut] = tokens[cut]
        bar, bar_token = lowest[entrants.rows], lowest_token[entrants.rows]
        alive &= (entrants.values > bar) | ((entrants.values == bar) & (entrants.tokens < bar_token))
        won = winners(entrants, rows, alive)
        tokens = entrants.tokens[won]
        pending = cut[tokens[cut] != best[cut]]
    return tokens


class _Check:
    """Answers whether tokens are kept, for some rows of a batch."""

    def __init__(self, logits: Tensor, best_values: Reals, table: SettingsTable, slots: Index) -> None:
        self._logits = logits
        self._best_values = best_values
        self._vocab = logits.shape[1]
        self._temperature = table.temperature[slots]
        self._log_min_p = table.log_min_p[slots]
        self._top_k = np.where(table.top_k[slots] > 0, table.top_k[slots], self._vocab)
        self._top_p = table.top_p[slots]
        self._mass = np.full(len(slots), np.nan)  # of what top_k keeps, relative to the best token; filled when needed

    def kept(self, rows: Index, tokens: Index, values: Reals) -> npt.NDArray[np.bool_]:
        weights = (values - self._best_values[rows]) / self._temperature[rows]
        kept: npt.NDArray[np.bool_] = weights >= self._log_min_p[rows]
        ordered = np.flatnonzero(kept & ((self._top_k[rows] < self._vocab) | (self._top_p[rows] < 1.0)))
        if not len(ordered):
            return kept
        sub, token, value = rows[ordered], tokens[ordered], values[ordered]
        mass, rank = self._before(sub, token, value)
        ok = rank < self._top_k[sub]
        nucleus = np.flatnonzero(ok & (self._top_p[sub] < 1.0))
        self._fill_mass(sub[nucleus])
        limit = self._top_p[sub] * self._mass[sub]
        doubt = _DOUBT * self._mass[sub]
        ok[nucleus] = mass[nucleus] < limit[nucleus]
        for i in nucleus[np.abs(mass - limit)[nucleus] <= doubt[nucleus]]:
            ok[i] = self._exactly(int(sub[i]), int(token[i]))
        kept[ordered] = ok
        return kept

    def _before(self, rows: Index, tokens: Index, values: Reals) -> tuple[Reals, Index]:
        """Mass (relative to the best token) and number of the tokens ordered before the given ones."""
        part = self._rows(rows)
        bars = torch.from_numpy(values).to(part.device, part.dtype).unsqueeze(1)
        flat = where_true(part >= bars)
        owner, token = np.divmod(flat, self._vocab)
        value = take(part, flat).astype(np.float64)
        before = (value > values[owner]) | (token < tokens[owner])
        owner, value = owner[before], value[before]
        mass = np.exp((value - self._best_values[rows][owner]) / self._temperature[rows][owner])
        count = len(rows)
        masses: Reals = np.bincount(owner, mass, count)
        return masses, np.bincount(owner, minlength=count)

    def _fill_mass(self, rows: Index) -> None:
        rows = rows[np.isnan(self._mass[rows])]
        if not len(rows):
            return
        part = self._rows(rows)
        limit = int(self._top_k[rows].max())
        ranks = None
        if limit < self._vocab:
            part = part.topk(limit, dim=1).values
            ranks = torch.arange(limit, device=part.device) < torch.from_numpy(self._top_k[rows, None]).to(part.device)
        scale = torch.from_numpy(np.stack((self._best_values[rows], 1.0 / self._temperature[rows]))).unsqueeze(2)
        scale = scale.to(part.device, part.dtype)
        weights = ((part - scale[0]) * scale[1]).exp()
        if ranks is not None:
            weights *= ranks
        self._mass[rows] = weights.sum(dim=1).double().cpu().numpy()

    def _exactly(self, row: int, token: int) -> bool:
        """The same question by correctly rounded sums, in no order: for the few draws that a sum's error could flip."""
        values = self._logits[row].double().cpu().numpy()
        ids = np.lexsort((np.arange(self._vocab), -values))[: self._top_k[row]]
        best, temperature = float(self._best_values[row]), float(self._temperature[row])
        weights = [math.exp((float(v) - best) / temperature) for v in values[ids]]
        rank = int(np.flatnonzero(ids == token)[0])
        return math.fsum(weights[:rank]) < float(self._top_p[row]) * math.fsum(weights)

    def _rows(self, rows: Index) -> Tensor:
        if len(rows) == len(self._logits):
            return self._logits
        return self._logits[torch.from_numpy(rows).to(self._logits.device)]
