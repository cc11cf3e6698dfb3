"""Top-k, then top-p, then min-p: the tokens that a row may draw.

Tokens are ordered by logit, the lowest id first among equals. top_k keeps the first k. top_p keeps a token if those
before it hold less than that share of the mass that top_k kept. min_p keeps tokens with at least that fraction of the
best one's probability. So a row keeps a prefix of this order, never an empty one, and its last token, the cut, defines
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.noise.arrays import Logits, beside, copied, double, exp, host, largest, numbers, select
from covey.noise.noise import Index, Reals
from covey.sampling.settings import SettingsTable

Flags = npt.NDArray[np.bool_]

_HEAD = 64  # leading tokens that suffice for most settings; other rows are sorted whole
_DOUBT = 1e-12  # relative; above the error of a float64 sum of exponentials in any order


@dataclass(frozen=True, slots=True)
class Cuts:
    """The last token that top_k and top_p keep in each row, and the least log weight that min_p keeps."""

    values: Reals
    tokens: Index
    log_min_p: Reals
    best_values: Reals
    temperatures: Reals

    def keep(self, rows: Index, tokens: Index, values: Reals) -> Flags:
        """Return whether the given tokens, with these logits, are kept."""
        cut = self.values[rows]
        kept: Flags = (values > cut) | ((values == cut) & (tokens <= self.tokens[rows]))
        kept &= (values - self.best_values[rows]) / self.temperatures[rows] >= self.log_min_p[rows]
        return kept

    def cut(self, logits: Logits) -> Logits:
        """Return the logits with -inf for tokens that are not kept."""
        columns = np.stack((self.values, self.best_values, self.temperatures, self.log_min_p, self.tokens))
        cut, best, temperature, log_min_p, token = beside(columns[:, :, None], logits)
        values = double(logits)
        kept = (values == cut) & (numbers(logits.shape[1], logits) <= token)
        kept |= values > cut
        kept &= (values - best) / temperature >= log_min_p
        logits = copied(logits)
        logits[~kept] = -np.inf
        return logits


def find_cuts(logits: Logits, best_values: Reals, table: SettingsTable, settings: Index) -> Cuts:
    """Return each row's cut by its settings."""
    rows, vocab = logits.shape
    temperatures = table.temperature[settings]
    cuts = Cuts(np.full(rows, -np.inf), np.full(rows, vocab), table.log_min_p[settings], best_values, temperatures)
    todo = np.flatnonzero(table.truncated[settings])
    top_k = np.where(table.top_k[settings] > 0, np.minimum(table.top_k[settings], vocab), vocab)
    top_p = table.top_p[settings]
    todo = todo[(top_k[todo] < vocab) | (top_p[todo] < 1.0)]
    for width in (min(_HEAD, vocab), vocab):
        if not len(todo):
            break
        part = select(logits, todo)
        values = _largest(part, width)
        weights = (values - best_values[todo, None]) / temperatures[todo, None]
        mass = np.full(len(todo), np.inf)  # infinite: unknown until the whole row is sorted
        open_ended = np.flatnonzero((top_k[todo] == vocab) & (top_p[todo] < 1.0))
        if width < vocab and len(open_ended):
            wide = todo[open_ended]
            mass[open_ended] = mass_of(select(logits, wide), best_values[wide], temperatures[wide])
        sizes, doubtful = _prefix_sizes(weights, top_k[todo], top_p[todo], mass)
        for i in doubtful:
            row = (_largest(part[i : i + 1], vocab)[0] - best_values[todo[i]]) / temperatures[todo[i]]
            sizes[i] = min(_exact_prefix_size(row, int(top_k[todo[i]]), float(top_p[todo[i]])), width)
        settled = sizes < width if width < vocab else np.ones(len(todo), np.bool_)
        done, kept = todo[settled], sizes[settled]
        values = values[settled]
        last = values[np.arange(len(done)), kept - 1]
        cuts.values[done] = last
        following = values[np.arange(len(done)), np.minimum(kept, width - 1)]
        for i in np.flatnonzero((following == last) & (kept < width)):
            equals = np.flatnonzero(host(select(logits, done[i : i + 1]))[0] == last[i])
            cuts.tokens[done[i]] = equals[kept[i] - np.count_nonzero(values[i] > last[i]) - 1]
        todo = todo[~settled]
    return cuts


def _prefix_sizes(weights: Reals, top_k: Index, top_p: Reals, mass: Reals) -> tuple[Index, Index]:
    """Return how many of each row's first tokens are kept, and the rows for which rounding could decide. `weights` are
    logarithms in descending order; `mass` is the sum of all of a row's exponentials if top_k does not limit it."""
    width = weights.shape[1]
    sizes: Index = np.minimum(top_k, width)
    nucleus = np.flatnonzero(top_p < 1.0)
    if not len(nucleus):
        return sizes, nucleus
    top_k = top_k[nucleus]
    sums = np.exp(weights[nucleus]).cumsum(axis=1)
    inside = sums[np.arange(len(nucleus)), np.minimum(top_k, width) - 1]
    limits = top_p[nucleus] * np.where(top_k <= width, inside, mass[nucleus])
    short = (sums < limits[:, None]).sum(axis=1)  # these tokens do not reach the share: one more is kept
    sizes[nucleus] = np.minimum(sizes[nucleus], short + 1)
    with np.errstate(invalid="ignore"):  # an unknown mass is infinite, and no sum is near it
        near = np.abs(sums - limits[:, None]) <= _DOUBT * limits[:, None]
    near &= np.isfinite(limits)[:, None]
    return sizes, nucleus[near.any(axis=1)]


def _exact_prefix_size(weights: Reals, top_k: int, top_p: float) -> int:
    """Return one whole row's prefix size, by correctly rounded sums, which do not depend on the order of addition."""
    kept = [math.exp(weight) for weight in weights[:top_k].tolist()]
    limit = top_p * math.fsum(kept)
    low, high = 0, len(kept) - 1
    while low < high:
        middle = (low + high) // 2
        if math.fsum(kept[: middle + 1]) < limit:
            low = middle + 1
        else:
            high = middle
    return low + 1


def mass_of(logits: Logits, best_values: Reals, temperatures: Reals) -> Reals:
    """Return each row's sum of exp((logit - best) / temperature)."""
    best, temperature = beside(np.stack((best_values, temperatures))[:, :, None], logits)
    values = double(logits) - best
    values /= temperature
    return host(exp(values).sum(axis=1))


def _largest(logits: Logits, width: int) -> Reals:
    return largest(logits, width).astype(np.float64)
