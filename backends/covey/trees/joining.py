"""Joins the trees that several drafters proposed into trees of the whole batch.

rows 0 and 2 from one drafter   offsets 0 2 3, tokens 11 12 31
row 1 from another              offsets 0 1, tokens 21
joined                          offsets 0 2 3 4, tokens 11 12 21 31
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.contracts.types import NO_FLOATS, Floats, Ints, Trees


def joined(rows: int, proposals: Sequence[tuple[list[int], Trees]]) -> Trees:
    """Return the trees of all rows of a batch; each proposal lists its rows. Rows without a proposal have no nodes. If
    one drafter gives no scores, no node has any, because they could not be compared."""
    if len(proposals) == 1 and proposals[0][0] == list(range(rows)):
        return proposals[0][1]
    proposals = [(indices, trees) for indices, trees in proposals if len(trees.tokens)]
    if not proposals:
        return Trees.empty(rows)
    parts = [trees for _, trees in proposals]
    row_of = np.concatenate([np.repeat(indices, trees.sizes) for indices, trees in proposals])
    order = np.argsort(row_of, kind="stable")

    def comparable(scores: list[Floats]) -> Floats:
        return np.concatenate(scores)[order] if all(map(len, scores)) else NO_FLOATS

    places = max(0 if trees.q_ids is None else trees.q_ids.shape[1] for trees in parts)
    q_rows = [_q_rows(trees, places) for trees in parts] if places else []
    return Trees(
        np.searchsorted(row_of[order], np.arange(rows + 1)).astype(np.int32),
        np.concatenate([trees.tokens for trees in parts])[order],
        np.concatenate([trees.parents for trees in parts])[order],
        comparable([trees.scores for trees in parts]),
        np.concatenate([ids for ids, _ in q_rows])[order] if q_rows else None,
        np.concatenate([probs for _, probs in q_rows])[order] if q_rows else None,
        comparable([trees.log_q for trees in parts]),
    )


def _q_rows(trees: Trees, places: int) -> tuple[Ints, Floats]:
    """Return the nodes' q rows, `places` wide. If a drafter shipped none, its tokens have probability 1, which the
    rejection rule also assumes without q rows. This is correct for a token from any source."""
    ids, probs = np.zeros((len(trees.tokens), places), np.int32), np.zeros((len(trees.tokens), places), np.float32)
    if trees.q_ids is None or trees.q_probs is None:
        ids[:, 0], probs[:, 0] = trees.tokens, 1.0
    else:
        width = trees.q_ids.shape[1]
        ids[:, :width], probs[:, :width] = trees.q_ids, trees.q_probs
    return ids, probs
