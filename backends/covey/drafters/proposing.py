"""Drafts chains and beams: the loops over a call's steps.

Nodes are laid out level by level, `width` per level, so node n of a row is the n-th column after its pending ones. An
unused place has token -1: it is below the row's depth, or the row's settings left it empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from covey.contracts.types import NO_FLOATS, SPARSE, Floats, Ints, Trees
from covey.drafters.choosing import TINY, Allowed, Choosing
from covey.models.stepper import Race, Stepper
from covey.noise.noise import Index, Purpose, keys, row_words
from covey.sampling.proposals import propose_rejection, sparse_q
from covey.sampling.settings import SettingsTable
from covey.text.grammar import Grammar, Words

DESCENT = 1e-6  # the least difference between a parent's score and its child's, so that parents sort first


@dataclass(frozen=True, slots=True)
class Lattice:
    """The nodes of all rows as [rows, steps * width], level by level; see `covey.contracts.types.Trees`."""

    tokens: Ints
    parents: Ints
    scores: Floats
    q_ids: Ints | None
    q_probs: Floats | None
    log_q: Floats | None

    @classmethod
    def empty(cls, rows: int, nodes: int, shipped: bool, log_q: bool) -> Lattice:
        return cls(
            np.full((rows, nodes), -1, np.int32),
            np.broadcast_to(np.arange(-1, nodes - 1, dtype=np.int32), (rows, nodes)).copy(),
            np.full((rows, nodes), -np.inf, np.float32),
            np.zeros((rows, nodes, SPARSE), np.int32) if shipped else None,
            np.zeros((rows, nodes, SPARSE), np.float32) if shipped else None,
            np.zeros((rows, nodes), np.float32) if log_q else None,
        )

    def trees(self) -> Trees:
        """Return the rows' trees, without unused places."""
        kept, parents = self.tokens >= 0, self.parents
        if not kept.all():
            place = np.cumsum(kept, axis=1, dtype=np.int32) - 1
            parents = np.where(parents < 0, -1, np.take_along_axis(place, np.maximum(parents, 0), 1))
        return Trees(
            np.append(0, np.cumsum(kept.sum(axis=1))).astype(np.int32),
            self.tokens[kept],
            parents[kept],
            self.scores[kept],
            None if self.q_ids is None else self.q_ids[kept],
            None if self.q_probs is None else self.q_probs[kept],
            NO_FLOATS if self.log_q is None else self.log_q[kept],
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs of rows of one width, the deepest first. `pending` [rows, n] holds each row's last tokens, `positions`
    the positions of the first proposals, `settings` the rows of the settings table. Proposals have ids below
    `vocab_size`. `rounds` and `rejection` (rows, ascending) are for the rejection rule, which has width 1."""

    pending: Index
    settings: Index
    positions: Index
    depths: Index
    width: int
    vocab_size: int
    rejection: Index
    rounds: Index
    q_rows: bool
    log_q: bool
    grammars: Mapping[int, Grammar] = field(default_factory=dict)  # of constrained rows

    @property
    def active(self) -> list[int]:
        """Return how many rows take part in each step."""
        counts: list[int] = (self.depths[:, None] > np.arange(self.depths[0])).sum(axis=0).tolist()
        return counts


def propose_trees(stepper: Stepper, table: SettingsTable, rows: Rows) -> Lattice:
    """Return a tree for every row; the stepper's call must have begun."""
    if stepper.draws and _plain_chains(table, rows):
        race = Race(table.temperature[rows.settings], _words(table, rows), rows.vocab_size)
        chains = stepper.chain(rows.pending, race)
        if chains is not None:
            return _as_lattice(*chains, rows)
    choosing = Choosing(table, rows.settings, rows.positions)
    logits = stepper.catch_up(rows.pending.reshape(-1), len(rows.depths))[:, : rows.vocab_size]
    return (
        _chains(stepper, table, choosing, logits, rows) if rows.width == 1 else _beams(stepper, choosing, logits, rows)
    )


def _plain_chains(table: SettingsTable, rows: Rows) -> bool:
    """Return whether the race's winners alone suffice for all rows."""
    asked = rows.q_rows or rows.log_q or len(rows.rejection) > 0 or bool(rows.grammars)
    steered = table.truncated[rows.settings] | table.biased[rows.settings]
    return rows.width == 1 and not asked and not steered.any()


def _words(table: SettingsTable, rows: Rows) -> Ints:
    """Return the noise of every step and row, [depth, 3, rows]."""
    depth = int(rows.depths[0])
    positions = rows.positions + np.arange(depth)[:, None]
    seeds = np.broadcast_to(table.seed[rows.settings], positions.shape).reshape(-1)
    words = row_words(keys(seeds, positions.reshape(-1), Purpose.COUPLED))
    return words.reshape(3, depth, -1).swapaxes(0, 1)


def _as_lattice(tokens: Ints, shares: Floats, rows: Rows) -> Lattice:
    """Return chains as a lattice, each cut at its row's depth."""
    outside = np.arange(tokens.shape[1]) >= rows.depths[:, None]
    scores = np.minimum(shares, -DESCENT).cumsum(axis=1)
    tokens[outside], scores[outside] = -1, -np.inf
    parents = np.repeat(np.arange(-1, tokens.shape[1] - 1, dtype=np.int32)[None], len(tokens), axis=0)
    return Lattice(tokens, parents, scores, None, None, None)


def _chains(stepper: Stepper, table: SettingsTable, choosing: Choosing, logits: Floats, rows: Rows) -> Lattice:
    """Return each row's chain of best children, down to the row's depth."""
    shipped = rows.q_rows or len(rows.rejection) > 0
    lattice = Lattice.empty(len(rows.depths), int(rows.depths[0]), shipped, rows.log_q)
    chosen, total = np.zeros(0, np.int64), np.zeros(len(rows.depths), np.float32)
    for step, count in enumerate(rows.active):
        if step:
            logits = stepper.step(chosen[:count], count)[:, : rows.vocab_size]
        allowed = _allowed(rows.grammars, lattice, step, count, 1) if rows.grammars else None
        own_logits, logits = logits, choosing.steered(logits, 1, allowed)
        chosen, score = choosing.best(logits, step)
        mine = rows.rejection[: np.searchsorted(rows.rejection, count)]
        if lattice.q_ids is not None and lattice.q_probs is not None:
            if len(mine) < count:
                lattice.q_ids[:count, step], lattice.q_probs[:count, step] = sparse_q(own_logits)
            if len(mine):
                part, places = logits[mine], rows.positions[mine] + step
                drawn = propose_rejection(part, table, rows.settings[mine], places, rows.rounds[mine])
                lattice.q_ids[mine, step], lattice.q_probs[mine, step] = drawn.ids, drawn.probs
                chosen[mine] = np.maximum(drawn.tokens, 0)
                share = np.where(drawn.ids == drawn.tokens[:, None], drawn.probs, 0.0).sum(axis=1)
                score[mine] = np.log(share + TINY)
        total = total[:count] + np.minimum(score, -DESCENT)
        lattice.tokens[:count, step], lattice.scores[:count, step] = chosen, total
        if lattice.log_q is not None:
            likely = choosing.log_q(logits, chosen[:, None], 1)[:, 0]
            likely[mine] = score[mine]  # drawn from the truncated q
            lattice.log_q[:count, step] = likely + (lattice.log_q[:count, step - 1] if step else 0.0)
    return lattice


def _allowed(grammars: Mapping[int, Grammar], lattice: Lattice, step: int, count: int, lanes: int) -> Allowed | None:
    """Return the tokens that grammars allow after each lane's path in the first rows. Leave a lane out if its grammar
    allows nothing: the target will refuse its path anyway."""
    where: list[int] = []
    found: list[Words | None] = []
    for row, grammar in grammars.items():
        for lane in range(lanes if row < count else 0):
            path, node = list[int](), (step - 1) * lanes + lane if step else -1
            while node >= 0:
                path.append(int(lattice.tokens[row, node]))
                node = int(lattice.parents[row, node])
            allowed = grammar.after(path[::-1])
            if allowed is not None:
                where.append(row * lanes + lane)
                found.append(allowed)
    return (np.asarray(where, np.int64), found) if where else None


def _beams(stepper: Stepper, choosing: Choosing, logits: Floats, rows: Rows) -> Lattice:
    """Return a beam search's nodes by path score: the `width` best of all children of a level are the next level."""
    width = rows.width
    lattice = Lattice.empty(len(rows.depths), int(rows.depths[0]) * width, rows.q_rows, rows.log_q)
    tokens, parents, scores = lattice.tokens, lattice.parents, lattice.scores
    parents[:, :width] = -1
    own = np.eye(width, dtype=np.bool_)[None]
    visible = np.ones((len(rows.depths), width, rows.pending.shape[1]), np.bool_)  # columns that each lane sees
    lanes = 1
    for step, count in enumerate(rows.active):
        above, level = slice((step - 1) * width, step * width), slice(step * width, (step + 1) * width)
        every = np.arange(count)[:, None]
        if step:
            going = np.maximum(tokens[:count, above], 0).astype(np.int64).reshape(-1)
            logits = stepper.step(going, count, visible[:count])[:, : rows.vocab_size]
        allowed = _allowed(rows.grammars, lattice, step, count, lanes) if rows.grammars else None
        own_logits, logits = logits, choosing.steered(logits, lanes, allowed)
        children, gained = choosing.top(logits, step, width, lanes)
        offered = children.shape[1]
        total = np.minimum(gained.reshape(count, lanes, offered), -DESCENT)
        if step:
            total = total + scores[:count, above, None]
        total = total.reshape(count, -1)
        best = np.argsort(-total, axis=1, kind="stable")[:, :width]
        taken = slice(level.start, level.start + best.shape[1])
        lane = np.zeros((count, width), np.int64)
        lane[:, : best.shape[1]] = best // offered
        scores[:count, taken] = total[every, best]
        tokens[:count, taken] = np.where(total[every, best] > -np.inf, children.reshape(count, -1)[every, best], -1)
        if step:
            parents[:count, level] = above.start + lane
        if lattice.log_q is not None:
            likely = choosing.log_q(logits, children, lanes).reshape(count, -1)[every, best]
            if step:
                likely += lattice.log_q[:count, above][every, lane[:, : best.shape[1]]]
            lattice.log_q[:count, taken] = likely
        if lattice.q_ids is not None and lattice.q_probs is not None:
            ids, probs = sparse_q(own_logits)
            lattice.q_ids[:count, level] = ids.reshape(count, lanes, -1)[every, lane]
            lattice.q_probs[:count, level] = probs.reshape(count, lanes, -1)[every, lane]
        seen = visible[every, np.arange(width)] if lanes == 1 else visible[every, lane]
        visible = np.concatenate([seen, np.broadcast_to(own, (count, width, width))], axis=2)
        lanes = width
    return lattice
