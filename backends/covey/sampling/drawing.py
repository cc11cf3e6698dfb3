"""Draws tokens from logits, each row by its own request's settings.

First come bias, grammar, penalties, minimum length and bad words. Then greedy rows take their best token; others apply
temperature, top-k, top-p and min-p, and race under the noise of (seed, position). A row's draw depends on its own
logits, settings, position and context, never on other rows. Knows nothing of trees or caches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covey import gpu
from covey.contracts.types import Floats, Ints
from covey.noise.arrays import Logits, beside, host, log_softmax, numbers, plain, select
from covey.noise.noise import Index, Purpose, Reals, best_tokens, keys, race, winners
from covey.sampling.penalties import Context, penalise
from covey.sampling.settings import SettingsTable
from covey.sampling.truncation import find_cuts

if TYPE_CHECKING:
    import torch

__all__ = ["Context", "Draws", "Fault", "SettingsTable", "draw"]


class Fault(IntEnum):
    """The reason why a row has no token."""

    NONE = 0
    NOT_FINITE = 1  # a logit is NaN or +inf
    ALL_MASKED = 2  # every token is at -inf, by the model or by logit_bias, a grammar, bad_words and min_tokens


@dataclass(frozen=True, slots=True)
class Draws:
    """The token drawn for each row, -1 if its fault is not Fault.NONE. `logprobs` are the model's own, before penalties
    and temperature, NaN for rows that did not ask."""

    tokens: Ints
    logprobs: Floats
    faults: Ints


def draw(
    logits: Logits,
    table: SettingsTable,
    settings: Ints,
    positions: Ints,
    contexts: Sequence[Context | None] | None = None,
) -> Draws:
    """Return the target's own token of every row. `positions[i]` is that token's index, prompt included. `contexts[i]`
    holds all tokens before it, needed only if `table.history[settings[i]]`, and the tokens that a grammar allows."""
    setting, position = np.asarray(settings, np.int64), np.asarray(positions, np.int64)
    given = plain(logits)
    work = penalise(given, table, setting, position, contexts)
    return _draw(given, work, table, setting, position)


def _draw(given: Logits, work: Logits, table: SettingsTable, settings: Index, positions: Index) -> Draws:
    by_kernels = False
    if not isinstance(work, np.ndarray):
        by_kernels = work.is_cuda and work.dtype.itemsize == 4 and not gpu.why_not(work.device)
    return (draw_on_device if by_kernels else draw_on_host)(given, work, table, settings, positions)


def draw_on_host(given: Logits, work: Logits, table: SettingsTable, settings: Index, positions: Index) -> Draws:
    """Draw from `work`, which is `given` after penalties. The host computes everything that must be exact."""
    best, values = best_tokens(work)
    faults = find_faults(values)
    tokens = best.copy()
    hot = np.flatnonzero((table.temperature[settings] > 0) & (faults == Fault.NONE))
    if len(hot):
        tokens[hot] = _draw_hot(select(work, hot), table, settings[hot], positions[hot], best[hot], values[hot])
    tokens[faults != Fault.NONE] = -1
    return Draws(tokens.astype(np.int32), log_probabilities(given, table, settings, tokens), faults)


def draw_on_device(given: Logits, work: Logits, table: SettingsTable, settings: Index, positions: Index) -> Draws:
    """Draw by kernels, with one copy to the host. Rows whose winner may be truncated are drawn again."""
    wanted = table.logprobs[settings]
    drawing = _drawing(threading.get_ident(), 1 << (len(settings) - 1).bit_length(), work.shape[1], work.device)
    row_keys = keys(table.seed[settings], positions, Purpose.COUPLED)
    drawing.give(table.temperature[settings], row_keys, wanted & (work is given))
    drawing.launch(work)
    drawn = drawing.results(len(settings))
    best, values, tokens = drawn.best, drawn.best_values, drawn.winners
    faults = find_faults(values)
    again = np.flatnonzero(table.truncated[settings] & (tokens != best) & (faults == Fault.NONE))
    if len(again):
        tokens[again] = _draw_hot(
            select(work, again), table, settings[again], positions[again], best[again], values[again]
        )
    tokens[faults != Fault.NONE] = -1
    logprobs = drawn.logprobs.astype(np.float32)
    others = again if work is given else np.flatnonzero(wanted)
    if wanted[others].any():
        logprobs[others] = log_probabilities(select(given, others), table, settings[others], tokens[others])
    return Draws(tokens.astype(np.int32), logprobs, faults)


@lru_cache(maxsize=32)
def _drawing(_thread: int, rows: int, vocab: int, device: torch.device) -> gpu.DeviceDraw:
    """Return the thread's own drawing, since one drawing makes one draw at a time."""
    return gpu.drawing(rows, vocab, device)


def find_faults(best_values: Reals) -> Ints:
    faults = np.zeros(len(best_values), np.int32)
    odd = ~np.isfinite(best_values)
    if odd.any():
        faults[odd] = Fault.NOT_FINITE
        faults[best_values == -np.inf] = Fault.ALL_MASKED
    return faults


def _draw_hot(
    logits: Logits, table: SettingsTable, settings: Index, positions: Index, best: Index, values: Reals
) -> Index:
    row_keys = keys(table.seed[settings], positions, Purpose.COUPLED)
    entrants = race(logits, best[:, None], values[:, None], table.temperature[settings], row_keys)
    won = winners(entrants, len(settings))
    doubtful = np.flatnonzero(table.truncated[settings] & (won != best))  # the best token is never cut
    if len(doubtful):
        cuts = find_cuts(select(logits, doubtful), values[doubtful], table, settings[doubtful])
        inverse = np.full(len(settings), -1)
        inverse[doubtful] = np.arange(len(doubtful))
        some = entrants.renumbered(inverse)
        won[doubtful] = winners(some.only(cuts.keep(some.rows, some.tokens, some.values)), len(doubtful))
    return won


def log_probabilities(logits: Logits, table: SettingsTable, settings: Index, tokens: Index) -> Floats:
    """Return the model's own log-probability of one token per row; NaN if the row did not ask or has no token."""
    logprobs: npt.NDArray[np.float32] = np.full(len(settings), np.nan, np.float32)
    rows = np.flatnonzero(table.logprobs[settings] & (tokens >= 0))
    if len(rows):
        found = log_softmax(logits[beside(rows, logits)])
        logprobs[rows] = host(found[numbers(len(rows), logits), beside(tokens[rows], logits)])
    return logprobs
