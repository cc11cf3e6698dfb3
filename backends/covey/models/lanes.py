"""One pass over a model, as its caller describes it: its tokens, where their keys go, and the keys that each sees.

This module knows neither models nor torch. A *lane* is one causal window of keys in position order; its queries are its
last keys. A chain (prefill chunk, decode row, chain of draft tokens) is one lane. A tree is one lane per path from root
to leaf, or one lane per node with that node as the only query. The results are the same; callers take the cheaper form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from covey.contracts.types import NO_INTS, Floats, Ints


@dataclass(frozen=True, slots=True)
class Lanes:
    """R lanes. Lane r has `lengths[r]` keys; key i is the one at position i. Its queries are packed tokens
    `queries[offsets[r]:offsets[r + 1]]`; if `queries` is None, the packed tokens themselves, in order. Query j of n
    sees the first `lengths[r] - n + j + 1` keys, the last of which is its own.

    Keys lie in the pool at `tables[r, i // block_size] * block_size + i % block_size`. If a lane has a tail, its last
    keys lie at slots `tails[tail_offsets[r]:tail_offsets[r + 1]]` instead. A chain needs no tail. Table entries past a
    lane's keys are ignored, and `tables` may be wider than any lane needs.

    An example with blocks of 4. One row knows 6 tokens and drafts a chain of 2. Another, in blocks 2 and 9, knows 5 and
    drafts 21, or 22 then 23. The pass has 7 tokens: a last known token and 2 drafts, a last known token and 3.

        lane     chain     root, 21   22, 23
        queries  0 1 2     3 4        5 6     the root's result is computed once, in the first of its tree's lanes
        lengths  8         6          7
        tables   0 1       2 9        2 9
        tails              37         38 39   by its table, 22 would lie in 37, which 21 has
    """

    offsets: Ints
    lengths: Ints
    tables: Ints
    queries: Ints | None = None
    tail_offsets: Ints | None = None
    tails: Ints = field(default_factory=lambda: NO_INTS)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def counts(self) -> Ints:
        """Return the number of queries of each lane."""
        return self.offsets[1:] - self.offsets[:-1]


@dataclass(frozen=True, slots=True)
class Windows:
    """The same row by row, as a GPU reads it: siblings share their row's window, and bits hide them from each other.
    Row r has packed tokens `offsets[r]` to `offsets[r + 1]` and `lengths[r]` keys. Key i lies at
    `tables[r, i // block_size] * block_size + i % block_size`. Token t sees its row's first `seen[t]` keys. It also
    sees key `base[r] + i` if bit i % 32 of `bits[t, i // 32]` is set. Its own key is among those."""

    offsets: Ints
    lengths: Ints
    tables: Ints
    base: Ints
    seen: Ints
    bits: Ints

    @property
    def counts(self) -> Ints:
        """Return the number of tokens of each row."""
        return self.offsets[1:] - self.offsets[:-1]


def windows_of(lanes: Lanes) -> Windows:
    """Return windows, without bits, for lanes that are all chains."""
    assert lanes.queries is None, "lanes of trees cannot become windows"
    counts = lanes.counts
    ends = np.repeat(lanes.lengths - lanes.offsets[1:], counts)
    seen = (ends + np.arange(1, len(ends) + 1)).astype(np.int32)
    return Windows(lanes.offsets, lanes.lengths, lanes.tables, lanes.lengths, seen, np.zeros((len(seen), 0), np.int32))


Stop: TypeAlias = npt.NDArray[np.int64]  # [1], set to 1 by another thread once nobody wants a pass's result


@dataclass(frozen=True, slots=True)
class Pass:
    """The packed tokens of one pass: id, absolute position, and the pool slot that gets its key and value before any
    attention reads. Every token is a query of one lane. A model's `windows` says which of the two forms it reads; all
    models read lanes that are chains. `out` are the tokens whose logits are wanted. A head also reads a state for each
    token (`covey.models.heads`)."""

    tokens: Ints
    positions: Ints
    slots: Ints
    lanes: Lanes | Windows
    out: Ints
    states: Floats | None = None  # [tokens, width]

    @property
    def size(self) -> int:
        return len(self.tokens)

    def check_tokens(self, known: int) -> None:
        """Raise ValueError unless all tokens are below `known`, the number of rows of the model's embedding."""
        low, high = self.tokens.min(initial=0), self.tokens.max(initial=0)
        if low < 0 or high >= known:
            raise ValueError(f"tokens: got {low if low < 0 else high}, allowed: ids from 0 to {known - 1}")


@runtime_checkable
class Stoppable(Protocol):
    """A model whose passes end early if nobody wants them any more."""

    def forward_until(self, work: Pass, stop: Stop) -> Floats | None:
        """Return the logits of a pass as `forward` does, or None soon after `stop` is set."""
        ...


def chain_slots(table: Ints, start: int, stop: int, block_size: int) -> Ints:
    """Return the pool slots of positions `start` to `stop` of a row with block table `table`."""
    at = np.arange(start, stop, dtype=np.int32)
    slots: Ints = (table[at // block_size] * block_size + at % block_size).astype(np.int32)
    return slots


def chain(tokens: Ints, block_size: int) -> Pass:
    """Return the pass over a text from its beginning, in the first blocks, with all logits."""
    count = len(tokens)
    at = np.arange(count, dtype=np.int32)
    table = np.arange(-(-count // block_size), dtype=np.int32)[None]
    return Pass(tokens, at, at, Lanes(np.array([0, count], np.int32), np.array([count], np.int32), table), at)
