"""Describes a batch for length policies."""

from __future__ import annotations

from covey.bandits.policy import Kind, Situation
from covey.planner.drafters.policy import Assignment
from covey.planner.rows import draft_tokens, spare
from covey.requests.roster import Roster
from covey.requests.scheduler import Batch


def situation_of(
    batch: Batch, assigned: Assignment, roster: Roster, budget: int, previous: int, *, max_depth: int, width: int
) -> Situation:
    """Return the batch, with its assigned drafters, as the length policy sees it. It has no `shares` if no row leaves
    its depth to the policy, and neither shares nor rows if there are no drafters."""
    drafters = assigned.drafters
    if not roster.names:
        return Situation(0, 0)
    rows = batch.decoding
    counts: dict[str, int] = {}
    missed: dict[str, int] = {}
    sampled: dict[str, int] = {}
    shifts: dict[Kind, list[float]] = {}
    lag = 0
    alike = True  # every row drafts a chain of the policy's depth
    served = False  # some row's drafter is available
    for active, name in zip(batch.rows, drafters):
        if active.request.speculation != "auto" or active.num_tokens >= roster.positions(name):
            alike = False
            continue
        serves = roster.serves(name)
        served, alike = served or serves, alike and serves
        counts[name] = counts.get(name, 0) + 1
        unseen = active.num_tokens - active.seen.get(name, 0)
        lag = max(lag, unseen)
        missed[name] = missed.get(name, 0) + unseen
        random = not active.request.sampling.greedy
        sampled[name] = sampled.get(name, 0) + random
        shifts.setdefault((name, random), []).append(active.leaning.shift)
    ceiling = max(0, min(max_depth, spare(batch, budget))) if served else 0
    prefill = int(batch.chunk[rows:].sum()) if len(batch.rows) > rows else 0
    if not counts:
        return Situation(rows, 0, previous, prefill=prefill)
    drafts: tuple[int, ...] = ()
    if not alike or width > 1:  # tokens that all rows are asked to draft, by the policy's depth
        drafts = draft_tokens(batch, drafters, roster, budget, max_depth, width)
    return Situation(
        rows,
        ceiling,
        previous,
        lag,
        tuple(counts.items()),
        prefill,
        tuple(missed.values()),
        drafts,
        served,
        width,
        tuple(sampled.values()),
        batch.joining,
        tuple(tuple(shifts[name, random]) for name in counts for random in (False, True) if (name, random) in shifts),
    )
