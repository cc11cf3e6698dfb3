"""Computes the keys of tokens that a drafter has not read, in passes over many texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from covey.contracts.types import NO_INTS
from covey.drafters.sessions import Session, readable
from covey.models.lanes import Lanes, Pass

if TYPE_CHECKING:
    from covey.runtimes.resizing import AnyModel


@dataclass(slots=True, eq=False)
class Piece:
    """The next `count` unread tokens of a session."""

    session: Session
    count: int


def read(model: AnyModel, pieces: Sequence[Piece], *, states: bool) -> None:
    """Store the keys of all pieces. With `states` the model is a head, which reads the sessions' states."""
    left = [(piece.session, piece.count) for piece in pieces]
    while left:
        free, now, later = model.max_pass_tokens, list[tuple[Session, int]](), list[tuple[Session, int]]()
        for session, count in left:
            take = min(count, free)
            free -= take
            if take:
                now.append((session, take))
            if count > take:
                later.append((session, count - take))
        model.forward(_packed(now, model.vocab_size, states=states))
        for session, take in now:
            session.sequence.num_cached_tokens += take
        left = later


def _packed(parts: list[tuple[Session, int]], vocab_size: int, *, states: bool) -> Pass:
    """Return the pass over the next unread tokens of each session, without logits. The model has `vocab_size`
    tokens."""
    tokens, positions, slots, lengths = [], [], [], []
    tables = np.zeros((len(parts), max(len(session.sequence.table) for session, _ in parts)), np.int32)
    for row, (session, count) in enumerate(parts):
        sequence, start = session.sequence, session.read
        tokens.append(sequence.buffer[start : start + count])
        positions.append(np.arange(start, start + count, dtype=np.int32))
        slots.append(sequence.slots[start : start + count])
        lengths.append(start + count)
        tables[row, : len(sequence.table)] = sequence.table
    offsets = np.cumsum([0, *(count for _, count in parts)]).astype(np.int32)
    lanes = Lanes(offsets, np.asarray(lengths, np.int32), tables)
    given = np.concatenate([session.states_of(session.unread, count) for session, count in parts]) if states else None
    ids = readable(np.concatenate(tokens), vocab_size)
    return Pass(ids, np.concatenate(positions), np.concatenate(slots), lanes, NO_INTS, given)
