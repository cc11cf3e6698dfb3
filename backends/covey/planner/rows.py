"""Applies the batch's depth to each row: a request's own depth comes first, then its room and the budget limit it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.contracts.types import Rule
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Plan
from covey.requests.scheduler import Batch
from covey_client.wire import MAX_DRAFT_TOKENS


def spare(batch: Batch, budget: int) -> int:
    """Return the draft tokens that each decoding row may add to the pass."""
    return (budget - int(batch.chunk.sum())) // max(1, batch.decoding)


def own_depth(active: ActiveRequest, batch: Batch, deepest: int) -> int | None:
    """Return the depth that the request asks for; None if it leaves that to the policy. If several tenants share the
    server, cap it at the policy's maximum, `deepest`, since others wait for every step."""
    speculation = active.request.speculation
    if speculation == "auto":
        return None
    own = 0 if speculation == "off" else int(speculation.removeprefix("fixed:"))
    return min(own, deepest) if batch.shared else own


def named(batch: Batch, roster: Roster) -> tuple[str, ...]:
    """Return each decoding row's drafter without a drafter policy: the one that its request names, else the first."""
    return tuple(roster.drafter_of(active.request.drafter) for active in batch.rows[: batch.decoding])


def capped(batch: Batch, plan: Plan, depth: int, ceiling: int, deepest: int) -> str:
    """Return what kept all rows below the chosen depth, or the choice below `deepest`; "" if nothing did."""
    most = int(plan.depth[: batch.decoding].max(initial=0))
    if most < depth:
        unfixed = [each for each in batch.rows[: batch.decoding] if each.request.speculation == "auto"]
        return "max_tokens" if all(each.room <= most + 1 for each in unfixed) else "drafter's room"
    return "token budget" if depth == ceiling < deepest else ""


def draft_tokens(
    batch: Batch, drafters: Sequence[str], roster: Roster, budget: int, depths: int, width: int
) -> tuple[int, ...]:
    """Return how many tokens all rows would be asked to draft by `lay_out`, for each depth from 0 to `depths`."""
    drafting = _drafting(roster)
    pairs = [
        (active, drafting[active.coupled][name])
        for active, name in zip(batch.rows, drafters)
        if name in drafting[active.coupled]
    ]
    mine, most = [active for active, _ in pairs], spare(batch, budget)
    own = [own_depth(active, batch, depths) for active in mine]
    limit = np.array([_limit(active, most, positions) for active, positions in pairs], np.int64)
    lanes = np.array([1 if active.request.sampling.rule is Rule.REJECTION else width for active in mine], np.int64)
    asked = np.array([-1 if depth is None else depth for depth in own], np.int64)
    depth = np.minimum(np.where(asked < 0, np.arange(depths + 1)[:, None], asked), limit)
    tokens = depth * np.clip(most // np.maximum(1, depth), 1, lanes)
    return tuple(tokens.sum(axis=1).tolist())


def lay_out(
    batch: Batch,
    drafters: Sequence[str],
    roster: Roster,
    budget: int,
    depth: int,
    width: int,
    deepest: int = MAX_DRAFT_TOKENS,
) -> Plan:
    """Return a plan with `depth` for every decoding row that asks for none itself. Each depth is clipped to the tokens
    that the row may still emit, to its drafter's positions and to the budget. Under the rejection rule all trees are
    chains. Rows whose drafter is unavailable decode plainly. `drafters` are by decoding row; `deepest` is as in
    `own_depth`."""
    rows = len(batch.rows)
    depths, widths, names = [0] * rows, [1] * rows, [""] * rows
    drafting = _drafting(roster)
    if drafting[True]:
        most = spare(batch, budget)
        for row, (active, name) in enumerate(zip(batch.rows, drafters)):
            if name not in drafting[active.coupled]:
                continue
            names[row] = name
            own = own_depth(active, batch, deepest)
            wanted = min(depth if own is None else own, _limit(active, most, drafting[active.coupled][name]))
            depths[row] = wanted
            if width > 1 and wanted and active.request.sampling.rule is not Rule.REJECTION:
                widths[row] = max(1, min(width, most // wanted))
    return Plan(np.array(depths, np.int32), np.array(widths, np.int32), tuple(names))


def _drafting(roster: Roster) -> dict[bool, dict[str, float]]:
    """Return the positions of each drafter that drafts for rows under the rejection rule (False), and for coupled ones
    (True)."""
    return {
        coupled: {name: roster.positions(name) for name in roster.names if roster.drafts(name, coupled=coupled)}
        for coupled in (False, True)
    }


def _limit(active: ActiveRequest, most: int, positions: float) -> int:
    """Return the deepest draft of a row: by its room, the pass's, and its drafter's positions."""
    return int(max(0, min(active.room - 1, most, positions - active.num_tokens)))
