"""Applies settings to logits before a draw: first bias, then those that depend on earlier tokens (grammars, penalties,
minimum length and bad words)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from covey.contracts.types import NO_INTS, Ints
from covey.noise.arrays import Logits, beside, copied, double, host, of_type
from covey.noise.noise import Index
from covey.sampling.settings import SettingsTable
from covey.text.grammar import Words
from covey_client.wire import BAN


def constrained(logits: Logits, rows: Index, allowed: Sequence[Words | None]) -> Logits:
    """Return logits with -inf, in the given rows, for each token that is not allowed; None allows nothing. `allowed`
    may name more tokens than there are logits."""
    vocab = logits.shape[1]
    nothing = np.zeros(-(-vocab // 32), np.uint32)
    words = np.stack([nothing if each is None else each[: len(nothing)] for each in allowed])
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=vocab)
    where = beside(rows, logits)
    logits = copied(logits)
    part = logits[where]
    part[beside(bits == 0, logits)] = -np.inf
    logits[where] = part
    return logits


def biased(logits: Logits, table: SettingsTable, settings: Index) -> Logits:
    """Return logits with each row's bias; the same object if no row has one. A row's bits depend only on its own
    settings."""
    rows = np.flatnonzero(table.biased[settings])
    if not len(rows):
        return logits
    vocab = logits.shape[1]
    own, which = np.unique(settings[rows], return_inverse=True)
    biases = [table.biases[int(setting)] for setting in own]
    tokens = np.concatenate([biases[at][0] for at in which])
    values = np.concatenate([biases[at][1] for at in which])
    places = np.repeat(rows * vocab, [len(biases[at][0]) for at in which]) + tokens
    inside = tokens < vocab
    where = beside(places[inside], logits)
    bias = beside(np.where(values > BAN, values, -np.inf)[inside], logits)
    logits = copied(logits)
    flat = logits.reshape(-1)
    flat[where] = of_type(double(flat[where]) + bias, logits)
    return logits


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The tokens before a draw: `history` (prompt and committed tokens), then the drafted `path`. Rows of one request
    should share one history array, which is then counted once."""

    history: Ints
    path: Ints = field(default_factory=lambda: NO_INTS)
    allowed: Words | None = None  # by the row's grammar, if it has one; None: no token


def penalise(
    logits: Logits, table: SettingsTable, settings: Index, positions: Index, contexts: Sequence[Context | None] | None
) -> Logits:
    """Return logits with bias, grammar, penalties, minimum length and bad words applied; the same object if no row has
    any. Raises ValueError if a row lacks the context it needs."""
    logits = biased(logits, table, settings)
    fitting = np.flatnonzero(table.constrained[settings])
    if len(fitting):
        contexts_of = [None if contexts is None else contexts[row] for row in fitting]
        logits = constrained(logits, fitting, [None if each is None else each.allowed for each in contexts_of])
    rows = np.flatnonzero(table.penalised[settings])
    if not len(rows):
        return logits
    vocab = logits.shape[1]
    logits = copied(logits)
    masked: list[int] = []
    counted = rows[table.history[settings[rows]]]
    if len(counted):
        known = [None if contexts is None else contexts[row] for row in counted]
        given = [context for context in known if context is not None]
        if len(given) < len(counted):
            raise ValueError("a row with penalties or bad words needs the tokens before it")
        _penalise_counts(logits, table, settings, counted, given)
        for row, context in zip(counted.tolist(), given, strict=True):
            words = table.sampling(int(settings[row])).bad_words
            longest = max(map(len, words), default=1)
            before = (*context.history[-longest:].tolist(), *context.path.tolist())
            for word in words:
                if word and word[-1] < vocab and before[len(before) - len(word) + 1 :] == word[:-1]:
                    masked.append(row * vocab + word[-1])
    produced = positions[rows] - table.num_prompt[settings[rows]]
    for row in rows[produced < table.min_tokens[settings[rows]]].tolist():
        masked += [row * vocab + token for token in table.sampling(int(settings[row])).end_ids if token < vocab]
    if masked:
        logits.reshape(-1)[beside(np.asarray(masked), logits)] = -np.inf
    return logits


def _penalise_counts(
    logits: Logits, table: SettingsTable, settings: Index, rows: Index, contexts: list[Context]
) -> None:
    """Apply repetition, presence and frequency penalties in place. A history shared by rows is counted once."""
    vocab = logits.shape[1]
    groups: dict[tuple[int, int], int] = {}
    named = [(setting, id(context.history)) for setting, context in zip(settings[rows].tolist(), contexts, strict=True)]
    group = np.array([groups.setdefault(name, len(groups)) for name in named], np.int64)
    _, firsts = np.unique(group, return_index=True)
    produced, seen = _count([contexts[i].history for i in firsts], table.num_prompt[settings[rows[firsts]]], vocab)
    seen_size = np.bincount(seen // vocab, minlength=len(groups))
    size = seen_size[group]
    ends = np.cumsum(size)
    source = seen[np.repeat((np.cumsum(seen_size) - seen_size)[group] - (ends - size), size) + np.arange(ends[-1])]
    places = np.repeat((rows - group) * vocab, size) + source  # places in logits; `source` are places in `produced`

    path_rows = np.repeat(rows, [len(context.path) for context in contexts])
    path = np.concatenate([context.path for context in contexts])
    drafted, times = np.unique(path_rows * vocab + path, return_counts=True)
    in_path = np.zeros(len(logits) * vocab, np.bool_)
    in_path[drafted] = True
    rest = ~in_path[places]
    group_of = np.zeros(len(logits), np.int64)
    group_of[rows] = group
    drafted_before = produced[group_of[drafted // vocab] * vocab + drafted % vocab]
    places = np.concatenate((places[rest], drafted))
    total = np.concatenate((produced[source[rest]], drafted_before + times))

    owner = settings[places // vocab]
    where, flat = beside(places, logits), logits.reshape(-1)
    values = host(flat[where]).astype(np.float64)
    repetition = table.repetition_penalty[owner]
    values = np.where(values < 0, values * repetition, values / repetition)
    values -= table.presence_penalty[owner] * (total > 0)
    values -= table.frequency_penalty[owner] * total
    flat[where] = of_type(beside(values, logits), logits)


def _count(histories: list[Ints], num_prompt: Index, vocab: int) -> tuple[Index, Index]:
    """Return how often each token was produced, history by history, and the places of tokens that occur at all."""
    sizes = np.array([len(history) for history in histories])
    owner = np.repeat(np.arange(len(histories)), sizes)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    flat = owner * vocab + np.concatenate(histories)
    length = len(histories) * vocab
    produced = np.bincount(flat[index >= num_prompt[owner]], minlength=length)
    return produced, np.flatnonzero(np.bincount(flat, minlength=length))
