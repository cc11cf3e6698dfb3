"""The inner step of a neural drafter: one token, or a few, per row.

Everything that a call's steps share (where contexts lie, positions, the slots of the tokens to come) is said once, in
a `Call`; a step is then told its tokens alone. Knows nothing of tags, trees or noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Floats, Ints
from covey.models.lanes import Pass
from covey.noise.arrays import Logits
from covey.noise.noise import Index, Reals

Visible = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Call:
    """The rows of one call. Row r's context lies in the first `context[r]` slots of blocks `tables[r]`; its token in
    column c of the call has position `positions[r, c]` and its key goes to slot `slots[r, c]`. A head is given the
    states [rows, pending tokens, width] that it reads in the first step."""

    tables: Ints
    context: Ints
    positions: Ints
    slots: Index
    states: Floats | None = None


@dataclass(frozen=True, slots=True)
class Race:
    """The parameters of a chain's draws: temperatures by row (0 is greedy), and the words of the noise by step and row,
    [depth, 3, rows]. Only ids below `vocab_size` are drawn; None: any."""

    temperatures: Reals
    words: Ints
    vocab_size: int | None = None


class Passes(Protocol):
    """A model, whatever computes it, as a stepper sees it."""

    @property
    def windows(self) -> bool:
        """Return whether trees are given as windows, not as lanes."""
        ...

    def forward(self, work: Pass) -> Logits:
        """Return the logits of the tokens that `work.out` names, good until the next pass."""
        ...


class Stepper(Protocol):
    """The steps of one call at a time, whose keys go to the call's slots."""

    draws: bool  # whether `chain` may be asked

    def begin(self, call: Call) -> None:
        """Begin with the first columns of a call."""
        ...

    def step(self, tokens: Index, rows: int, visible: Visible | None = None) -> Floats:
        """Return logits [tokens, vocab] of the next tokens of the first `rows` rows, as many for each. `visible` [rows,
        tokens per row, columns so far] says which of the call's columns each sees; None: all."""
        ...

    def catch_up(self, tokens: Index, rows: int) -> Floats:
        """Return logits [rows, vocab] of each row's last token; its tokens follow one another."""
        ...

    def chain(self, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        """Draw all steps at once: return the chains behind the rows' pending tokens [rows, n], and the log of each
        token's share, [rows, depth]. None, and nothing done, where they are too many or too long."""
        ...
