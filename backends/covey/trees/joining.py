"""Joins the trees that several drafters proposed into those of the whole batch.

rows 0 and 2 from one drafter   offsets 0 2 3, tokens 11 12 31
row 1 from another              offsets 0 1, tokens 21
joined                          offsets 0 2 3 4, tokens 11 12 21 31
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from covey.types import NO_FLOATS, NO_INTS, Floats, Ints, Trees

Numbers = TypeVar("Numbers", Ints, Floats)


def joined(rows: int, proposals: Sequence[tuple[list[int], Trees]]) -> Trees:
    """The trees of all rows of a batch; each proposal has the rows that it is for. Rows of none have no nodes. Where
    one drafter gives no scores no node has any, for they could not be compared."""
    if len(proposals) == 1 and proposals[0][0] == list(range(rows)):
        return proposals[0][1]
    proposals = [(indices, trees) for indices, trees in proposals if len(trees.tokens)]
    if not proposals:
        return Trees.empty(rows)
    parts = [trees for _, trees in proposals]
    row_of = np.concatenate([np.repeat(indices, trees.sizes) for indices, trees in proposals])
    order = np.argsort(row_of, kind="stable")

    def gathered(arrays: list[Numbers], none: Numbers) -> Numbers:
        return np.concatenate(arrays)[order] if all(map(len, arrays)) else none

    places = max(0 if trees.q_ids is None else trees.q_ids.shape[1] for trees in parts)
    q_rows = [_q_rows(trees, places) for trees in parts] if places else []
    return Trees(
        np.searchsorted(row_of[order], np.arange(rows + 1)).astype(np.int32),
        gathered([trees.tokens for trees in parts], NO_INTS),
        gathered([trees.parents for trees in parts], NO_INTS),
        gathered([trees.scores for trees in parts], NO_FLOATS),
        np.concatenate([ids for ids, _ in q_rows])[order] if q_rows else None,
        np.concatenate([probs for _, probs in q_rows])[order] if q_rows else None,
        gathered([trees.log_q for trees in parts], NO_FLOATS),
    )


def _q_rows(trees: Trees, places: int) -> tuple[Ints, Floats]:
    """The nodes' q rows, `places` wide. Where a drafter shipped none, the row says that its token was certain, which
    is what the rejection rule takes a node without a row for: right whatever the token came from."""
    ids, probs = trees.q_ids, trees.q_probs
    if ids is None or probs is None:
        ids, probs = trees.tokens[:, None], np.ones((len(trees.tokens), 1), np.float32)
    more = ((0, 0), (0, places - ids.shape[1]))
    return np.pad(ids, more), np.pad(probs, more)
