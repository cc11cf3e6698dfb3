"""From a pass's logits to what each row emits, by the rule that its request asked for.

Knows nothing of blocks or caches: the caller commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from covey.runtime.rejection import judge
from covey.runtime.sampling import Context, Fault, SettingsTable, draw
from covey.types import Floats, Ints, Rule, Trees
from covey.verify import Walk, walk

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verified:
    """Row r accepted nodes `path[starts[r]:starts[r] + accepted[r]]` of its own tree and emits as many tokens and one
    more. A row whose walk ends at logits that allow no token emits what it accepted before them, as plain decoding
    would have, its last accepted node being the one more; if they are its root's it is `faulty` and emits nothing."""

    accepted: Ints
    path: tuple[Ints, ...]  # by row: indices within the row's tree
    tokens: tuple[Ints, ...]  # by row
    logprobs: tuple[Floats, ...]  # by row
    faulty: Mask


@dataclass(frozen=True, slots=True)
class Places:
    """What there is one of per row of logits, packed as in `covey.verify`: a row's root, then its nodes."""

    logits: Tensor
    slots: Ints
    positions: Ints
    contexts: Sequence[Context | None] | None

    def of(self, rows: Mask, trees: Trees) -> Places:
        """Those of the given rows."""
        keep = np.flatnonzero(np.repeat(rows, trees.sizes + 1))
        contexts = None if self.contexts is None else [self.contexts[place] for place in keep]
        return Places(self.logits[keep], self.slots[keep], self.positions[keep], contexts)


def rows_of(trees: Trees, rows: Mask) -> Trees:
    """The trees of the given rows alone."""
    if rows.all():
        return trees
    kept = trees.only(rows)
    keep = np.concatenate([[True], rows])
    return Trees(kept.offsets[keep], kept.tokens, kept.parents, kept.scores, kept.q_ids, kept.q_probs)


def verify(places: Places, table: SettingsTable, trees: Trees, rounds: Ints) -> Verified:
    """Walk every row's tree. `rounds` are the verify rounds that each request has had."""
    roots = trees.offsets[:-1] + np.arange(trees.rows, dtype=np.int32)
    rules = [table.sampling(slot).rule for slot in places.slots[roots].tolist()]
    by_rejection = np.fromiter((rule is Rule.REJECTION for rule in rules), np.bool_, len(rules))
    if not by_rejection.any():
        return _coupled(places, table, trees)
    if by_rejection.all():
        return _rejection(places, table, trees, rounds)
    one = _coupled(places.of(~by_rejection, trees), table, rows_of(trees, ~by_rejection))
    two = _rejection(places.of(by_rejection, trees), table, rows_of(trees, by_rejection), rounds[by_rejection])
    return merged(by_rejection, one, two)


def _coupled(places: Places, table: SettingsTable, trees: Trees) -> Verified:
    draws = draw(places.logits, table, places.slots, places.positions, places.contexts)
    walked = walk(trees, draws.tokens)
    faults = draws.faults[walked.places] != Fault.NONE  # a failed draw matches no child: it can only be a row's last
    return _verified(trees, walked, draws.logprobs[walked.places], np.logical_or.reduceat(faults, walked.offsets[:-1]))


def _rejection(places: Places, table: SettingsTable, trees: Trees, rounds: Ints) -> Verified:
    judged = judge(places.logits, table, places.slots, places.positions, places.contexts, trees, rounds)
    return _verified(trees, judged.walk, judged.logprobs, judged.faults != Fault.NONE)


def _verified(trees: Trees, walked: Walk, logprobs: Floats, faults: Mask) -> Verified:
    """`faults`: rows whose last place has no token."""
    bounds = walked.offsets.tolist()
    nodes = walked.path - np.repeat(trees.offsets[:-1], walked.accepted)  # numbered within their trees
    late = faults & (walked.accepted > 0)
    cut = late.tolist()
    paths, tokens, scores = [], [], []
    for row, start in enumerate(bounds[:-1]):
        end = bounds[row + 1] - cut[row]
        begin = start - row  # one place in `path` fewer per row than in `tokens`
        paths.append(nodes[begin : begin + end - start - 1])
        tokens.append(walked.tokens[start:end])
        scores.append(logprobs[start:end])
    return Verified(walked.accepted - late, tuple(paths), tuple(tokens), tuple(scores), faults & ~late)


def pick(verified: Verified, rows: Sequence[int]) -> Verified:
    """Those of the given rows, in the order given."""
    index = list(rows)
    return Verified(
        verified.accepted[index],
        tuple(verified.path[row] for row in index),
        tuple(verified.tokens[row] for row in index),
        tuple(verified.logprobs[row] for row in index),
        verified.faulty[index],
    )


def merged(second: Mask, one: Verified, two: Verified) -> Verified:
    """Rows in their order: from `two` where `second`, else from `one`."""
    index = np.where(second, np.cumsum(second) - 1, np.cumsum(~second) - 1).tolist()
    source = [two if later else one for later in second.tolist()]
    pairs = list(zip(source, index))
    return Verified(
        np.asarray([part.accepted[row] for part, row in pairs], np.int32),
        tuple(part.path[row] for part, row in pairs),
        tuple(part.tokens[row] for part, row in pairs),
        tuple(part.logprobs[row] for part, row in pairs),
        np.asarray([part.faulty[row] for part, row in pairs], np.bool_),
    )
