"""Lays rows out as one pass over a paged model: tokens to compute, and the lanes that their attention reads.

A lane is one causal window in position order. A chain of drafts is one lane; a tree is one lane per root-to-leaf path.
So siblings never share a window, and every node sees exactly its path as if that were the text. Nodes on several paths
are computed in the first of them. A model that reads windows gets the ancestors of each node instead.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt

from covey.contracts.types import NO_INTS, Ints, Trees
from covey.kv.sequences import Sequence
from covey.models.lanes import Lanes, Pass, Windows, windows_of
from covey.trees.paths import Nodes


def leaf_paths(parents: Ints) -> list[Ints]:
    """Return the node indices from below the root to each leaf."""
    inner = set(parents.tolist())
    return [path_to(parents, leaf) for leaf in range(len(parents)) if leaf not in inner]


def path_to(parents: Ints, node: int) -> Ints:
    """Return the node indices from below the root to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return np.asarray(path[::-1], np.int32)


class Packing:
    """The layout of one pass over `rows`; row r computes `chunk[r]` known tokens and then its tree. `ends[r]` tells
    whether its last known token is computed, so that tokens can be drawn. `depth` is every node's depth. The pass also
    returns the logits of each row's first `scored[r]` tokens; `of_prompt` marks those among the logits."""

    def __init__(
        self, rows: Rows[Sequence], chunk: list[int], trees: Trees, scored: Ints | None = None, *, windows: bool = False
    ) -> None:
        size = np.asarray(chunk, np.int32)
        cached = np.fromiter((sequence.num_cached_tokens for sequence in rows), np.int32, len(rows))
        num_tokens = np.fromiter((sequence.num_tokens for sequence in rows), np.int32, len(rows))
        reached, sizes = cached + size, size + trees.sizes
        lengths, offsets = cached + sizes, _bounds(sizes)
        starts, stops, ends = cached.tolist(), reached.tolist(), lengths.tolist()
        at = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1], sizes)  # index within its row
        positions = np.repeat(cached, sizes) + at
        tokens = np.concatenate([row.buffer[start:stop] for row, start, stop in zip(rows, starts, stops)])
        slots = np.concatenate([row.slots[start:end] for row, start, end in zip(rows, starts, ends)])
        ended = reached == num_tokens
        self.ends: list[bool] = ended.tolist()
        self.of_prompt: npt.NDArray[np.bool_] | None = None
        if max(chunk) == 1 and ended.all():  # the usual case: all logits are wanted
            out = np.arange(len(at), dtype=np.int32)
        else:
            wanted = (at >= np.repeat(size - 1, sizes)) & np.repeat(ended, sizes)
            if scored is not None:
                of_prompt = at < np.repeat(scored, sizes)
                wanted |= of_prompt
                self.of_prompt = of_prompt[wanted]
            out = np.flatnonzero(wanted).astype(np.int32)
        tables = np.zeros((len(rows), max(len(row.table) for row in rows)), np.int32)
        for row, sequence in enumerate(rows):
            tables[row, : len(sequence.table)] = sequence.table
        self.depth, branching = _depths(trees)
        if len(self.depth):
            is_node = at >= np.repeat(size, sizes)
            positions[is_node] = np.repeat(reached - 1, trees.sizes) + self.depth
            known_tokens, tokens = tokens, np.empty(len(at), np.int32)
            tokens[~is_node], tokens[is_node] = known_tokens, trees.tokens
        lanes = Lanes(offsets, lengths, tables)
        seen: Lanes | Windows = lanes
        if branching:
            seen = _with_ancestors(lanes, trees) if windows else _by_path(lanes, rows, size, trees, branching)
        self.work = Pass(tokens, positions, slots, seen, out)


def _depths(trees: Trees) -> tuple[Ints, list[int]]:
    """Return every node's depth, and the rows whose trees are not chains."""
    if not len(trees.tokens):
        return NO_INTS, []
    node = np.arange(len(trees.tokens), dtype=np.int32) - np.repeat(trees.offsets[:-1], trees.sizes)
    off_chain = trees.parents != node - 1
    depth, branching = node + 1, []
    if off_chain.any():
        branching = np.unique(np.repeat(np.arange(trees.rows), trees.sizes)[off_chain]).tolist()
        depth = Nodes.of(trees).depth
    return depth, branching


def _by_path(chains: Lanes, rows: Rows[Sequence], chunk: Ints, trees: Trees, branching: list[int]) -> Lanes:
    """Return `chains` with a lane for each root-to-leaf path of the trees that branch."""
    lanes, lengths, queries, tails = [], [], [], []
    trees_of = set(branching)
    for row, sequence in enumerate(rows):
        own = np.arange(chains.offsets[row], chains.offsets[row + 1], dtype=np.int32)
        if row not in trees_of:
            lanes.append(row)
            lengths.append(int(chains.lengths[row]))
            queries.append(own)
            tails.append(NO_INTS)
            continue
        length, size = sequence.num_tokens, int(chunk[row])
        parents = trees.parents[trees.offsets[row] : trees.offsets[row + 1]]
        computed = np.zeros(len(parents), bool)
        for index, path in enumerate(leaf_paths(parents)):
            lanes.append(row)
            lengths.append(length + len(path))
            rest = own[size + path[~computed[path]]]
            computed[path] = True
            queries.append(rest if index else np.concatenate([own[:size], rest]))
            tails.append(sequence.slots[length + path])
    return Lanes(
        _bounds([len(each) for each in queries]),
        np.asarray(lengths, np.int32),
        chains.tables[lanes],
        np.concatenate(queries),
        _bounds([len(tail) for tail in tails]),
        np.concatenate(tails),
    )


def _with_ancestors(lanes: Lanes, trees: Trees) -> Windows:
    """Return the windows of rows whose last tokens are their trees."""
    windows = windows_of(lanes)
    sizes = trees.sizes
    seen, base = windows.seen.copy(), lanes.lengths - sizes
    bits = np.zeros((len(seen), -(-int(sizes.max()) // 32)), np.uint32)
    for row, size in enumerate(sizes.tolist()):
        end = int(lanes.offsets[row + 1])
        seen[end - size : end] = base[row]
        own = bits[end - size : end]
        for node, parent in enumerate(trees.parents[trees.offsets[row] : trees.offsets[row + 1]].tolist()):
            if parent >= 0:
                own[node] = own[parent]
            own[node, node // 32] |= np.uint32(1 << node % 32)
    return Windows(lanes.offsets, lanes.lengths, lanes.tables, base, seen, bits.view(np.int32))


def _bounds(sizes: Rows[int] | Ints) -> Ints:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds
