"""Turns a pass's logits into the tokens that each row emits, by the verification rule of its request.

This module knows no blocks or caches: the caller commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Floats, Ints, Top, Trees
from covey.noise.arrays import Logits, plain
from covey.sampling.drawing import Context, Fault, SettingsTable, draw
from covey.sampling.likeliest import likeliest
from covey.sampling.rejection import verify_chains
from covey.target.divergence import NO_DIVERGENCE, block_divergence
from covey.trees.verify import Walk, walk

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of all rows; `path` and `tokens` are packed row by row. Row r accepted `accepted[r]` nodes of its
    tree; its part of `path` has their indices within the tree. It emits one token more; its part of `tokens` has them.

    A walk may end at logits that allow no token. Then the row emits the tokens accepted before, as plain decoding would
    have, and its last accepted node counts as the one more. If the root's logits allow none, the row is `faulty` and
    emits nothing.

    An example with the trees in the docstring of `Trees`. The target draws 11 and 19 in row 0, where 12 was drafted. It
    draws 5 in row 1, and 22, 23 and 24 in row 2:

        accepted  1      0  2
        path      0         1 2        row 2 took its nodes 1 and 2, not node 0
        tokens    11 19  5  22 23 24   each row's last token is the target's own
    """

    accepted: Ints
    path: Ints
    tokens: Ints
    logprobs: Floats
    faulty: Mask
    divergence: Floats  # see `divergence.py`; NO_DIVERGENCE if it was not asked for
    top: Top  # aligned with tokens

    @property
    def emitted(self) -> Ints:
        """Return how many tokens each row emits."""
        return np.where(self.faulty, 0, self.accepted + 1)


@dataclass(frozen=True, slots=True)
class Places:
    """Arrays with one entry per row of logits, packed as in `covey.trees.verify`: a row's root, then its nodes."""

    logits: Logits
    settings: Ints
    positions: Ints
    contexts: Sequence[Context | None] | None

    def of(self, rows: Mask, trees: Trees) -> Places:
        """Return the places of the given rows."""
        keep = np.flatnonzero(np.repeat(rows, trees.sizes + 1))
        contexts = None if self.contexts is None else [self.contexts[place] for place in keep]
        return Places(self.logits[keep], self.settings[keep], self.positions[keep], contexts)


def rows_of(trees: Trees, rows: Mask) -> Trees:
    """Return the trees of only the given rows."""
    if rows.all():
        return trees
    kept = trees.only(rows)
    keep = np.concatenate([[True], rows])
    return Trees(kept.offsets[keep], kept.tokens, kept.parents, kept.scores, kept.q_ids, kept.q_probs)


def verify(places: Places, table: SettingsTable, trees: Trees, rounds: Ints, *, divergence: bool = False) -> Verified:
    """Walk every row's tree. `rounds` are the verification rounds that each request has had."""
    places = replace(places, logits=plain(places.logits))
    walked = _walked(places, table, trees, rounds)
    if not divergence:
        return walked
    return replace(walked, divergence=block_divergence(places.logits, table, places.settings, trees))


def _walked(places: Places, table: SettingsTable, trees: Trees, rounds: Ints) -> Verified:
    roots = trees.offsets[:-1] + np.arange(trees.rows, dtype=np.int32)
    by_rejection = table.rejection[places.settings[roots]]
    if not by_rejection.any():
        return _coupled(places, table, trees)
    if by_rejection.all():
        return _rejection(places, table, trees, rounds)
    one = _coupled(places.of(~by_rejection, trees), table, rows_of(trees, ~by_rejection))
    two = _rejection(places.of(by_rejection, trees), table, rows_of(trees, by_rejection), rounds[by_rejection])
    return merged(by_rejection, one, two)


def _coupled(places: Places, table: SettingsTable, trees: Trees) -> Verified:
    draws = draw(places.logits, table, places.settings, places.positions, places.contexts)
    walked = walk(trees, draws.tokens)
    faults = draws.faults[walked.places] != Fault.NONE  # a failed draw matches no child, so only a walk's last can fail
    top = likeliest(places.logits, table, places.settings, walked.places)
    faulty = np.logical_or.reduceat(faults, walked.offsets[:-1])
    return _verified(trees, walked, draws.logprobs[walked.places], top, faulty)


def _rejection(places: Places, table: SettingsTable, trees: Trees, rounds: Ints) -> Verified:
    found = verify_chains(places.logits, table, places.settings, places.positions, places.contexts, trees, rounds)
    top = likeliest(places.logits, table, places.settings, found.walk.places)
    return _verified(trees, found.walk, found.logprobs, top, found.faults != Fault.NONE)


def _verified(trees: Trees, walked: Walk, logprobs: Floats, top: Top, faults: Mask) -> Verified:
    """Return the outcome of a walk; `faults` marks rows whose last place allows no token."""
    accepted, tokens = walked.accepted, walked.tokens
    path: Ints = walked.path - np.repeat(trees.offsets[:-1], accepted)  # indices within their trees
    faulty = faults
    if faults.any():
        late: Mask = faults & (accepted > 0)
        emits, runs = np.ones(len(tokens), np.bool_), np.ones(len(path), np.bool_)
        emits[walked.offsets[1:][faults] - 1] = False
        runs[np.cumsum(accepted)[late] - 1] = False
        tokens, logprobs, path = tokens[emits], logprobs[emits], path[runs]
        top = top.at(emits)
        accepted, faulty = np.where(late, accepted - 1, accepted), faults & ~late
    unknown = np.full(trees.rows, NO_DIVERGENCE, np.float32)
    return Verified(accepted, path, tokens, logprobs, faulty, unknown, top)


def pick(verified: Verified, rows: Ints) -> Verified:
    """Return the outcomes of the given rows, in the order given."""
    if np.array_equal(rows, np.arange(len(verified.accepted))):
        return verified
    tokens = _spans(verified.emitted, rows)
    return Verified(
        path=verified.path[_spans(verified.accepted, rows)],
        top=verified.top.at(tokens),
        **{name: getattr(verified, name)[rows] for name in ("accepted", "faulty", "divergence")},
        **{name: getattr(verified, name)[tokens] for name in ("tokens", "logprobs")},
    )


def merged(second: Mask, one: Verified, two: Verified) -> Verified:
    """Return the outcomes of all rows in order: from `two` where `second` is set, else from `one`."""
    arrays = [each.name for each in fields(Verified) if each.name != "top"]
    both = {name: np.concatenate([getattr(one, name), getattr(two, name)]) for name in arrays}
    order = np.where(second, len(one.accepted) + np.cumsum(second) - 1, np.cumsum(~second) - 1)
    return pick(Verified(**both, top=Top.joined([one.top, two.top])), order)


def _spans(sizes: Ints, rows: Ints) -> Ints:
    """Return the indices of the given rows' items. Row r has `sizes[r]` items, and rows follow one another."""
    taken = sizes[rows]
    starts = (np.cumsum(sizes) - sizes)[rows]
    indices: Ints = np.repeat(starts - (np.cumsum(taken) - taken), taken) + np.arange(int(taken.sum()))
    return indices
