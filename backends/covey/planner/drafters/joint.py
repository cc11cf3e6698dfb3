"""Chooses a batch's set of drafters by tokens per second: it starts from the best one and grows while another gains.

    value(S) = max over depths of  sum over rows of max over i in S of tokens(row, i)  /  seconds(rows by drafter)

Rows whose requests name their drafter, or want none, keep their tokens, but a call that delays them counts. Every other
row gets the drafter of the set with the most tokens at the greatest depth. Each further drafter is one more call, and
takes rows from the others. All candidates of a step are compared at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covey.planner.drafters.beliefs import Array

GAIN = 1.01  # a further drafter must gain 1 %: its rows' catch-up and its share of the cores are not counted


@dataclass(frozen=True, slots=True)
class Prospects:
    """The expected tokens and seconds of a batch, whose rows without a named drafter may be moved."""

    tokens: Array  # emitted by these rows in a round: [rows, drafters, depths]
    others: Array  # emitted by the other rows, [depths]
    plain: Array  # seconds of a round without drafting, [depths]
    drafts: Array  # seconds of each drafter alone: [drafters, rows from 0 to all of them, depths]
    asked: Mapping[int, int]  # drafters that requests name, and the number of their rows
    together: Callable[[Array], Array]  # seconds of drafters at the same time, from those alone, [drafters, ...]


def best_set(found: Prospects) -> tuple[list[int], float]:
    """Return the drafters, and their expected tokens per second."""
    drafters = found.tokens.shape[1]
    chosen = list(found.asked)
    if chosen:
        most = float(_values(found, chosen, []).max())
    else:
        values = _values(found, [], range(drafters))
        # If plain decoding is best, all drafters tie; then tokens at the greatest depth decide.
        first = int(np.lexsort((found.tokens[:, :, -1].sum(axis=0), values))[-1])
        chosen, most = [first], float(values[first])
    while len(chosen) < drafters and len(found.tokens) + len(found.asked) > 1:
        others = [each for each in range(drafters) if each not in chosen]
        values = _values(found, chosen, others)
        best = int(values.argmax())
        if values[best] <= GAIN * most:
            break
        chosen.append(others[best])
        most = float(values[best])
    return chosen, most


def _values(found: Prospects, chosen: Sequence[int], others: Sequence[int]) -> Array:
    """Return the tokens per second, at the best depth, of the chosen set plus each of the others, if any."""
    rows, _, depths = found.tokens.shape
    more = found.tokens[:, others] if len(others) else np.zeros((rows, 1, depths))
    if len(chosen):
        mine = found.tokens[:, chosen]
        moves = more[:, :, -1] > mine[:, :, -1].max(axis=1)[:, None]
        emitted = np.maximum(more, mine.max(axis=1)[:, None]).sum(axis=0)
        own = (mine[:, :, -1].argmax(axis=1)[:, None] == np.arange(len(chosen))).astype(np.int64)
        counts = own.T @ ~moves + np.array([[found.asked.get(each, 0)] for each in chosen])
        drafts = found.drafts[np.array(chosen)[:, None], counts]
    else:
        moves = np.ones(more.shape[:2], np.bool_)
        emitted = more.sum(axis=0)
        drafts = np.zeros((0, more.shape[1], depths))
    if len(others):
        drafts = np.concatenate([drafts, found.drafts[np.asarray(others), moves.sum(axis=0)][None]])
    speeds: Array = ((emitted + found.others) / (found.plain + found.together(drafts))).max(axis=1)
    return speeds
