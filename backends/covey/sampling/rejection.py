"""The rejection rule's target side: accept flags, residuals and bonus draws for chains, from logits and sparse q rows.

Every stream of noise is keyed by (seed, round of the request, position, purpose) and used once. Without the round, a
refused draft would bias the next round, which draws the same position again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Floats, Ints, Trees
from covey.noise.arrays import Logits, beside, copied, double, exp, host, plain, select
from covey.noise.noise import Index, Purpose, Reals, best_tokens, keys, uniforms
from covey.sampling.drawing import Fault, find_faults, log_probabilities
from covey.sampling.penalties import Context, penalise
from covey.sampling.settings import SettingsTable
from covey.sampling.truncation import find_cuts, mass_of
from covey.trees.verify import Walk, count_accepted, parent_places, walk_chains


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the rejection rule for a batch of chains. `logprobs` belong to `walk.tokens`. A row whose fault is
    not Fault.NONE ends in token -1."""

    walk: Walk
    logprobs: Floats
    faults: Ints


def verify_chains(
    logits: Logits,
    table: SettingsTable,
    settings: Ints,
    positions: Ints,
    contexts: Sequence[Context | None] | None,
    trees: Trees,
    rounds: Ints,
) -> Outcome:
    """Verify one chain per row. `logits`, `settings`, `positions` and `contexts` are as for `draw`, packed as in
    `covey.trees.verify`. `rounds` holds each tree row's number of verify rounds so far."""
    given = plain(logits)
    setting, position = np.asarray(settings, np.int64), np.asarray(positions, np.int64)
    probs, faults = probabilities(given, table, setting, position, contexts)
    places = parent_places(trees).astype(np.int64)
    round_of = np.repeat(np.asarray(rounds, np.int64), trees.sizes + 1)
    row_keys = keys(table.seed[setting[places]], position[places], Purpose.ACCEPT, round_of[places])
    q_ids, q_probs = _q_rows(trees)
    q = np.where(q_ids == trees.tokens[:, None], q_probs, 0.0).sum(axis=1)
    p = _gather(probs, places, trees.tokens)
    accepts = accept(uniforms(row_keys), p, q)
    accepted = count_accepted(trees, accepts)

    stops = trees.offsets[:-1].astype(np.int64) + np.arange(trees.rows) + accepted
    left = select(probs, stops)
    refused = np.flatnonzero(accepted < trees.sizes)
    if len(refused):
        node = trees.offsets[refused] + accepted[refused]
        left = copied(left)
        _subtract(left, refused, q_ids[node], q_probs[node])
    purposes = np.full(trees.rows, Purpose.BONUS)
    purposes[refused] = Purpose.RESIDUAL
    last = np.empty(trees.rows, np.float64)
    for purpose in (Purpose.BONUS, Purpose.RESIDUAL):
        mine = purposes == purpose
        last[mine] = uniforms(
            keys(table.seed[setting[stops[mine]]], position[stops[mine]], purpose, round_of[stops[mine]])
        )
    alternates = np.where(faults[stops] == Fault.NONE, _pick(left, last), -1).astype(np.int32)
    walked = walk_chains(trees, accepts, alternates)
    emitted = walked.places.astype(np.int64)
    logprobs = log_probabilities(select(given, emitted), table, setting[emitted], walked.tokens.astype(np.int64))
    return Outcome(walked, logprobs, faults[stops])


def accept(uniform: Reals, p: Reals, q: Reals) -> npt.NDArray[np.bool_]:
    """Return whether each draft is accepted: with probability min(1, p / q)."""
    return uniform * q < p


def probabilities(
    logits: Logits, table: SettingsTable, settings: Index, positions: Index, contexts: Sequence[Context | None] | None
) -> tuple[Logits, Ints]:
    """Return each row's distribution after all settings, in float64, and the faults. The distribution is one-hot for
    greedy rows and all zero for faulty ones."""
    work = penalise(plain(logits), table, settings, positions, contexts)
    best, values = best_tokens(work)
    faults = find_faults(values)
    probs = copied(double(work))
    probs[...] = 0.0
    cold = np.flatnonzero((faults == Fault.NONE) & (table.temperature[settings] == 0))
    probs[beside(cold, probs), beside(best[cold], probs)] = 1.0
    hot = np.flatnonzero((faults == Fault.NONE) & (table.temperature[settings] > 0))
    if len(hot):
        part, temperature, top = select(work, hot), table.temperature[settings[hot]], values[hot]
        if table.truncated[settings[hot]].any():
            part = find_cuts(part, top, table, settings[hot]).cut(part)
        columns = np.stack((top, temperature, mass_of(part, top, temperature)))[:, :, None]
        best_value, heat, mass = beside(columns, probs)
        probs[beside(hot, probs)] = exp((double(part) - best_value) / heat) / mass
    return probs, faults


def _q_rows(trees: Trees) -> tuple[Ints, Reals]:
    """Return the q rows. A node's token gets probability 1 if it has no q row, or one that gives it no mass."""
    certain = np.ones((len(trees.tokens), 1))
    if trees.q_ids is None or trees.q_probs is None:
        return trees.tokens[:, None], certain
    ids, probs = trees.q_ids, trees.q_probs.astype(np.float64)
    totals = probs.sum(axis=1, keepdims=True)
    probs = np.divide(probs, totals, out=np.zeros_like(probs), where=totals > 0)
    unlikely = np.flatnonzero(np.where(ids == trees.tokens[:, None], probs, 0.0).sum(axis=1) <= 0)
    if len(unlikely):
        ids = ids.copy()
        ids[unlikely], probs[unlikely] = 0, 0.0
        ids[unlikely, 0], probs[unlikely, 0] = trees.tokens[unlikely], 1.0
    return ids, probs


def _subtract(left: Logits, rows: Index, ids: Ints, q: Reals) -> None:
    """Compute max(0, p - q) in place. If rounding leaves no mass at all, p stays."""
    vocab = left.shape[1]
    q = np.where((ids >= 0) & (ids < vocab), q, 0.0)
    less = np.zeros((len(rows), vocab))
    np.add.at(less, (np.arange(len(rows))[:, None], np.clip(ids, 0, vocab - 1)), q)
    where = beside(rows, left)
    after = (left[where] - beside(less, left)).clip(0.0)
    some = beside(np.flatnonzero(host(after.sum(axis=1)) > 0), left)
    left[where[some]] = after[some]


def _pick(weights: Logits, uniform: Reals) -> Index:
    """Return one token per row, drawn in proportion to the weights; never one of weight zero."""
    sums = weights.cumsum(axis=1)
    totals = host(sums[:, -1])
    thresholds = np.minimum(uniform * totals, np.nextafter(totals, 0.0))
    return host((sums <= beside(thresholds[:, None], sums)).sum(axis=1))


def _gather(probs: Logits, places: Index, tokens: Ints) -> Reals:
    vocab = probs.shape[1]
    inside = (tokens >= 0) & (tokens < vocab)
    gathered = probs[beside(places, probs), beside(np.where(inside, tokens, 0).astype(np.int64), probs)]
    return np.where(inside, host(gathered), 0.0)
