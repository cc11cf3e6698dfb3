"""Walks candidate trees by given draws, for a whole batch at once. Knows neither noise nor logits.

Draws and other arrays by row of logits are packed: each tree row has one place for its root, then one for each of its
nodes in order. Row r starts at `trees.offsets[r] + r`. The draw at a place is the target's choice for the token that
follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Ints, Trees

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a walk through a batch of trees. Row r emits `tokens[offsets[r]:offsets[r + 1]]`: `accepted[r]`
    drafted tokens and one token of the target. Token i was drawn at packed place `places[i]`. `path` holds the accepted
    nodes as indices into `trees.tokens`, from `offsets[r] - r` on for row r."""

    accepted: Ints
    offsets: Ints
    tokens: Ints
    places: Ints
    path: Ints


def walk(trees: Trees, draws: Ints) -> Walk:
    """Walk trees by the coupled rule: every emitted token is the target's own draw. While a child has that token, the
    walk continues at the first such child. A negative draw (of a failed row) is emitted and matches nothing."""
    roots, nodes, parents = _places(trees)
    matching = np.flatnonzero(draws[parents] == trees.tokens)[::-1]
    dead_end = len(draws)
    child = np.full(dead_end + 1, -1, np.int32)  # the next node from each place
    child[parents[matching]] = matching  # the last assignment wins: the first child
    place = np.append(nodes, dead_end)  # each node's place; nothing follows node -1
    steps = []
    node = child[roots]
    while (node >= 0).any():
        steps.append(node)
        node = child[place[node]]
    return _emit(roots, nodes, steps, draws)


def walk_chains(trees: Trees, accepts: Flags, alternates: Ints) -> Walk:
    """Walk chains by the rejection rule: node i is accepted if `accepts` is true for it and all nodes before it in its
    row. Then row r emits `alternates[r]`, drawn from the residual or, after a whole chain, as the bonus token."""
    roots, nodes, _ = _places(trees)
    accepted = count_accepted(trees, accepts)
    draws = np.zeros(len(roots) + len(nodes), np.int32)
    draws[nodes - 1] = trees.tokens  # in a chain, a node's parent is at the place before it
    draws[roots + accepted] = alternates
    depth = int(accepted.max(initial=0))
    steps = [np.where(step < accepted, trees.offsets[:-1] + step, -1) for step in range(depth)]
    return _emit(roots, nodes, steps, draws)


def count_accepted(trees: Trees, accepts: Flags) -> Ints:
    """Return how many leading nodes of each row's chain are accepted."""
    check_chains(trees)
    refused = np.append(np.flatnonzero(~accepts), len(accepts))
    first = refused[np.searchsorted(refused, trees.offsets[:-1])]
    accepted: Ints = (np.minimum(first, trees.offsets[1:]) - trees.offsets[:-1]).astype(np.int32)
    return accepted


def check_chains(trees: Trees) -> None:
    """Raise ValueError unless all trees are chains: the rejection rule is exact for chains only."""
    starts = np.repeat(trees.offsets[:-1], trees.sizes)
    if not np.array_equal(trees.parents, np.arange(len(starts)) - starts - 1):
        raise ValueError("the rejection rule verifies only chains: each node's parent must be the node before it")


def parent_places(trees: Trees) -> Ints:
    """Return the packed place of every node's parent: the row of logits that verifies the node."""
    return _places(trees)[2]


def _places(trees: Trees) -> tuple[Ints, Ints, Ints]:
    """Return the packed places of all roots, all nodes, and all nodes' parents."""
    row = np.arange(trees.rows, dtype=np.int32)
    roots = trees.offsets[:-1] + row
    sizes = trees.sizes
    root_of = np.repeat(roots, sizes)
    nodes = np.repeat(row, sizes) + np.arange(1, len(root_of) + 1, dtype=np.int32)
    return roots, nodes, root_of + trees.parents + 1


def _emit(roots: Ints, nodes: Ints, steps: list[Ints], draws: Ints) -> Walk:
    """Return the walk along `steps`: `steps[i]` is each row's i-th accepted node, -1 after its last."""
    taken = np.array(steps, np.int32).reshape(len(steps), len(roots)).T
    live = taken >= 0
    path = taken[live]
    accepted = live.sum(axis=1, dtype=np.int32)
    offsets = np.zeros(len(roots) + 1, np.int32)
    np.cumsum(accepted + 1, out=offsets[1:])
    places = np.empty(offsets[-1], np.int32)
    from_root = np.zeros(len(places), np.bool_)
    from_root[offsets[:-1]] = True
    places[from_root] = roots
    places[~from_root] = nodes[path]
    return Walk(accepted, offsets, draws[places], places, path)
