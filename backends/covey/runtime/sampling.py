"""From logits to drawn tokens, each row by its own request's settings.

Penalties, minimum length and bad words; then the best token if greedy, else temperature, top-k, top-p, min-p and the
race under the noise of (seed, position). A row's draw depends on its own logits, settings, position and context, never
on the other rows. Knows nothing of trees or caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.runtime.noise import Index, Purpose, Reals, best_tokens, keys, race, winners
from covey.runtime.penalties import Context, penalise
from covey.runtime.settings import SettingsTable
from covey.runtime.truncation import find_cuts, select
from covey.types import Floats, Ints

__all__ = ["Context", "Draws", "Fault", "SettingsTable", "draw"]


class Fault(IntEnum):
    """Why a row has no token."""

    NONE = 0
    NOT_FINITE = 1  # a logit is NaN or +inf
    ALL_MASKED = 2  # every token is at -inf, by the model or by bad_words and min_tokens


@dataclass(frozen=True, slots=True)
class Draws:
    """One token per row, -1 where `faults` is not Fault.NONE. `logprobs` are the model's own, before penalties and
    temperature, NaN for rows that did not ask."""

    tokens: Ints
    logprobs: Floats
    faults: Ints


def draw(
    logits: Tensor,
    table: SettingsTable,
    slots: Ints,
    positions: Ints,
    contexts: Sequence[Context | None] | None = None,
) -> Draws:
    """The target's own token of every row. `positions[i]` is the index, prompt included, of the token being drawn;
    `contexts[i]` all tokens before it, needed only where `table.history[slots[i]]`."""
    slot, position = np.asarray(slots, np.int64), np.asarray(positions, np.int64)
    given = logits.float() if logits.dtype not in (torch.float32, torch.float64) else logits
    work = penalise(given.contiguous(), table, slot, position, contexts)
    best, values = best_tokens(work)
    faults = find_faults(values)
    tokens = best.copy()
    hot = np.flatnonzero((table.temperature[slot] > 0) & (faults == Fault.NONE))
    if len(hot):
        part = work if len(hot) == len(slot) else work[torch.from_numpy(hot).to(work.device)]
        tokens[hot] = _draw_hot(part, table, slot[hot], position[hot], best[hot], values[hot])
    tokens[faults != Fault.NONE] = -1
    return Draws(tokens.astype(np.int32), log_probabilities(given, table, slot, tokens), faults)


def find_faults(best_values: Reals) -> Ints:
    faults = np.zeros(len(best_values), np.int32)
    odd = ~np.isfinite(best_values)
    if odd.any():
        faults[odd] = Fault.NOT_FINITE
        faults[best_values == -np.inf] = Fault.ALL_MASKED
    return faults


def _draw_hot(
    logits: Tensor, table: SettingsTable, slots: Index, positions: Index, best: Index, values: Reals
) -> Index:
    row_keys = keys(table.seed[slots], positions, Purpose.COUPLED)
    entrants = race(logits, best[:, None], values[:, None], table.temperature[slots], row_keys)
    won = winners(entrants, len(slots))
    doubtful = np.flatnonzero(table.truncated[slots] & (won != best))  # the best token is never cut
    if len(doubtful):
        cuts = find_cuts(select(logits, doubtful), values[doubtful], table, slots[doubtful])
        inverse = np.full(len(slots), -1)
        inverse[doubtful] = np.arange(len(doubtful))
        some = entrants.renumbered(inverse)
        won[doubtful] = winners(some.only(cuts.keep(some.rows, some.tokens, some.values)), len(doubtful))
    return won


def log_probabilities(logits: Tensor, table: SettingsTable, slots: Index, tokens: Index) -> Floats:
    """The model's own log-probability of one token per row; NaN where the row did not ask or has no token."""
    found: npt.NDArray[np.float32] = np.full(len(slots), np.nan, np.float32)
    rows = np.flatnonzero(table.logprobs[slots] & (tokens >= 0))
    if len(rows):
        where = torch.from_numpy(rows).to(logits.device)
        picked = torch.from_numpy(tokens[rows]).to(logits.device).unsqueeze(1)
        found[rows] = logits[where].log_softmax(dim=1).gather(1, picked).squeeze(1).float().cpu().numpy()
    return found
