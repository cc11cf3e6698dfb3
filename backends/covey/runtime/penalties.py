"""Settings that depend on the tokens before a draw: penalties, minimum length, bad words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from covey.runtime.noise import Index, Reals
from covey.runtime.settings import SettingsTable
from covey.types import NO_INTS, Ints
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """All tokens before a draw: `history` (prompt and committed tokens), then the drafted `path`. Rows of one request
    should share one history array: it is counted once."""

    history: Ints
    path: Ints = field(default_factory=lambda: NO_INTS)


def penalise(
    logits: Tensor, table: SettingsTable, slots: Index, positions: Index, contexts: Sequence[Context | None] | None
) -> Tensor:
    """Logits with penalties, minimum length and bad words applied; the same tensor where no row has any."""
    rows = np.flatnonzero(table.penalised[slots])
    if not len(rows):
        return logits
    logits = logits.clone()
    edits = _Edits(logits)
    counted = rows[table.history[slots[rows]]]
    if len(counted):
        if contexts is None or any(contexts[row] is None for row in counted):
            raise ValueError("a row with penalties or bad words needs the tokens before it")
        given = [(int(row), context) for row in counted if (context := contexts[row]) is not None]
        _penalise_counts(logits, table, slots, given, edits)
        edits.apply()
        for row, context in given:
            for word in table.sampling(int(slots[row])).bad_words:
                if _ends_with(context, word[:-1]):
                    edits.mask(row, word[-1:])
    produced = positions[rows] - table.num_prompt[slots[rows]]
    for row in rows[produced < table.min_tokens[slots[rows]]]:
        edits.mask(int(row), table.sampling(int(slots[row])).end_ids)
    edits.apply()
    return logits


class _Edits:
    """Scattered writes into logits, gathered so that a device sees one."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self._flat: list[Index] = []
        self._values: list[Reals] = []

    def write(self, flat: Index, values: Reals) -> None:
        self._flat.append(flat)
        self._values.append(values)

    def mask(self, row: int, tokens: Sequence[int]) -> None:
        vocab = self._logits.shape[1]
        inside = [row * vocab + token for token in tokens if 0 <= token < vocab]
        self.write(np.array(inside, np.int64), np.full(len(inside), -np.inf))

    def apply(self) -> None:
        if self._flat:
            device = self._logits.device
            flat = torch.from_numpy(np.concatenate(self._flat)).to(device)
            values = torch.from_numpy(np.concatenate(self._values)).to(device, self._logits.dtype)
            self._logits.view(-1)[flat] = values
            self._flat, self._values = [], []


def _penalise_counts(
    logits: Tensor, table: SettingsTable, slots: Index, rows: list[tuple[int, Context]], edits: _Edits
) -> None:
    """Repetition, presence and frequency penalties. A request's history is counted once; a path then corrects the few
    tokens that it adds, from the untouched logits, so the order of writes (history, then path) matters."""
    vocab = logits.shape[1]
    counts: dict[tuple[int, int], tuple[npt.NDArray[np.int64], Index]] = {}
    flats, totals, owners = [], [], []
    late = []
    for row, context in rows:
        slot = int(slots[row])
        known = counts.get((slot, id(context.history)))
        if known is None:
            known = _count(context.history, int(table.num_prompt[slot]), vocab)
            counts[slot, id(context.history)] = known
        produced, seen = known
        flats.append(seen + row * vocab)
        totals.append(produced[seen])
        owners.append(np.full(len(seen), slot))
        if len(context.path):
            drafted, times = np.unique(context.path, return_counts=True)
            late.append((drafted + row * vocab, produced[drafted] + times, np.full(len(drafted), slot)))
    for flat, total, owner in late:
        flats.append(flat.astype(np.int64))
        totals.append(total)
        owners.append(owner)
    where, owner_of, total_of = np.concatenate(flats), np.concatenate(owners), np.concatenate(totals)
    values = logits.view(-1)[torch.from_numpy(where).to(logits.device)].cpu().double().numpy()
    repetition = table.repetition_penalty[owner_of]
    values = np.where(values < 0, values * repetition, values / repetition)
    values -= table.presence_penalty[owner_of] * (total_of > 0)
    values -= table.frequency_penalty[owner_of] * total_of
    # One write per place: with duplicates the order of a scatter is undefined. The last, a path's, is the right one.
    places, first = np.unique(where[::-1], return_index=True)
    edits.write(places, values[::-1][first])


def _count(history: Ints, num_prompt: int, vocab: int) -> tuple[npt.NDArray[np.int64], Index]:
    """How often each token was produced, and which tokens occur at all."""
    produced = np.bincount(history[num_prompt:], minlength=vocab)
    seen = produced.copy()
    seen[history[:num_prompt]] = 1
    return produced, np.flatnonzero(seen)


def _ends_with(context: Context, tokens: tuple[int, ...]) -> bool:
    size = len(tokens)
    if size == 0:
        return True
    tail = context.path[-size:].tolist()
    if len(tail) < size:
        tail = context.history[len(context.history) - (size - len(tail)) :].tolist() + tail
    return bool(tail == list(tokens))
