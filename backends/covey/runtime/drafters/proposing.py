"""Chains and beams: the loops over a call's steps.

Nodes are laid out level by level, `width` to a level, so that node n of a row is the n-th column after its pending
ones. A place that no token could take has token -1 and score -inf, as have all below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from covey.runtime.drafters.choosing import Choosing
from covey.runtime.drafters.stepper import Stepper
from covey.runtime.noise import Index
from covey.runtime.proposals import SPARSE, propose_rejection, sparse_q
from covey.runtime.settings import SettingsTable
from covey.types import Floats, Ints

DESCENT = 1e-6  # a child scores at least so much less than its parent, so that an order by score is an order by depth


@dataclass(frozen=True, slots=True)
class Proposed:
    """One row's nodes, level by level; see `covey.types.Trees`."""

    tokens: Ints
    parents: Ints
    scores: Floats
    q_ids: Ints | None = None
    q_probs: Floats | None = None


def propose_trees(
    stepper: Stepper,
    table: SettingsTable,
    pending: Index,
    *,
    settings: Index,
    positions: Index,
    depths: Index,
    width: int,
    rejection: npt.NDArray[np.bool_],
    rounds: Index,
    q_rows: bool,
    vocab: int,
) -> list[Proposed]:
    """A tree for every row, the deepest rows first. `pending` [rows, n] are each row's last tokens, `positions` the
    position of the first proposal. `rounds` and `rejection` are of the rejection rule, which has width 1."""
    rows, steps = len(depths), int(depths[0])
    choosing = Choosing(table, settings, positions, steps, vocab)
    logits = stepper.catch_up(torch.from_numpy(pending.reshape(-1)), rows)
    if width > 1:
        return _beams(stepper, choosing, logits, pending.shape[1], depths, width, q_rows)
    tokens = np.zeros((rows, steps), np.int64)
    scores = np.zeros((rows, steps), np.float32)
    shipped = q_rows or bool(rejection.any())
    q_ids = np.zeros((rows, steps, SPARSE), np.int32) if shipped else None
    q_probs = np.zeros((rows, steps, SPARSE), np.float32) if shipped else None
    refused = np.flatnonzero(rejection)
    active = (depths[:, None] > np.arange(steps)).sum(axis=0).tolist()
    for step, count in enumerate(active):
        if step:
            logits = stepper.step(torch.from_numpy(tokens[:count, step - 1].copy()), count)
        chosen, score = choosing.best(logits, step)
        if q_ids is not None and q_probs is not None:
            q_ids[:count, step], q_probs[:count, step] = sparse_q(logits)
            mine = refused[: np.searchsorted(refused, count)]
            if len(mine):
                part = logits[torch.from_numpy(mine)]
                drawn = propose_rejection(part, table, settings[mine], positions[mine] + step, rounds[mine])
                q_ids[mine, step], q_probs[mine, step] = drawn.ids, drawn.probs
                chosen[mine] = np.maximum(drawn.tokens, 0)
                found = np.where(drawn.ids == drawn.tokens[:, None], drawn.probs, 0.0).sum(axis=1)
                score[mine] = np.log(found + 1e-30)
        tokens[:count, step], scores[:count, step] = chosen, score
    totals = np.minimum(scores, -DESCENT).cumsum(axis=1)
    out = []
    for row, depth in enumerate(depths.tolist()):
        q = (None, None) if q_ids is None or q_probs is None else (q_ids[row, :depth], q_probs[row, :depth])
        parents = np.arange(-1, depth - 1, dtype=np.int32)
        out.append(Proposed(tokens[row, :depth].astype(np.int32), parents, totals[row, :depth], *q))
    return out


def _beams(
    stepper: Stepper,
    choosing: Choosing,
    logits: torch.Tensor,
    pending: int,
    depths: Index,
    width: int,
    q_rows: bool,
) -> list[Proposed]:
    """Beam search by path score: the `width` best of all children of a level are the next level."""
    rows, steps = len(depths), int(depths[0])
    tokens = np.full((rows, steps * width), -1, np.int64)
    parents = np.full(tokens.shape, -1, np.int32)
    scores = np.full(tokens.shape, -np.inf, np.float32)
    q_ids = np.zeros((*tokens.shape, SPARSE), np.int32) if q_rows else None
    q_probs = np.zeros((*tokens.shape, SPARSE), np.float32) if q_rows else None
    visible = np.ones((rows, width, pending), np.bool_)
    lanes = 1
    for step, count in enumerate((depths[:, None] > np.arange(steps)).sum(axis=0).tolist()):
        level = slice(step * width, (step + 1) * width)
        every = np.arange(count)[:, None]
        if step:
            above = tokens[:count, (step - 1) * width : step * width].reshape(-1)
            seen = torch.from_numpy(visible[:count])
            logits = stepper.step(torch.from_numpy(np.maximum(above, 0)), count, seen)
        found, gained = choosing.top(logits, step, width, lanes)
        offered = found.shape[1]
        total = np.minimum(gained.reshape(count, lanes, offered), -DESCENT)
        if step:
            total = total + scores[:count, (step - 1) * width : step * width, None]
        total = total.reshape(count, -1)
        best = np.argsort(-total, axis=1, kind="stable")[:, :width]
        taken = slice(level.start, level.start + best.shape[1])
        scores[:count, taken] = total[every, best]
        tokens[:count, taken] = np.where(total[every, best] > -np.inf, found.reshape(count, -1)[every, best], -1)
        lane = np.zeros((count, width), np.int64)
        lane[:, : best.shape[1]] = best // offered
        if step:
            parents[:count, level] = (step - 1) * width + lane
        if q_ids is not None and q_probs is not None:
            ids, probs = sparse_q(logits)
            q_ids[:count, level] = ids.reshape(count, lanes, -1)[every, lane]
            q_probs[:count, level] = probs.reshape(count, lanes, -1)[every, lane]
        own = np.broadcast_to(np.eye(width, dtype=np.bool_), (count, width, width))
        visible = np.concatenate([visible[every, lane], own], axis=2)
        lanes = width
    out = []
    for row, depth in enumerate(depths.tolist()):
        end = depth * width
        q = (None, None) if q_ids is None or q_probs is None else (q_ids[row, :end], q_probs[row, :end])
        out.append(Proposed(tokens[row, :end].astype(np.int32), parents[row, :end], scores[row, :end], *q))
    return out
