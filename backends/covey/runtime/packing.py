"""Lays rows out as one pass over a paged model: tokens to compute, and the lanes their attention runs over.

A lane is one causal window in position order. A chain of drafts is one lane; a tree is one lane per root-to-leaf path,
so that siblings never share a window and every node sees exactly what it would see if its path were the text. A model
that reads windows gets trees with the ancestors of each node instead.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np

from covey.runtime.lanes import Lanes, Pass, Windows, windows_of
from covey.runtime.sequences import Sequence
from covey.types import NO_INTS, Ints, Trees


def depths(parents: Ints) -> Ints:
    """Each node's depth in its row's tree; the root's children have depth 1."""
    depth = np.zeros(len(parents), np.int32)
    for node, parent in enumerate(parents.tolist()):
        depth[node] = 1 if parent < 0 else depth[parent] + 1
    return depth


def is_chain(parents: Ints) -> bool:
    """Whether a tree is a single path, stored in order."""
    return bool((parents == np.arange(-1, len(parents) - 1)).all())


def leaf_paths(parents: Ints) -> list[Ints]:
    """Node indices from below the root to each leaf."""
    above = parents.tolist()
    inner = set(above)
    paths = []
    for leaf in range(len(above)):
        if leaf in inner:
            continue
        path = []
        node = leaf
        while node >= 0:
            path.append(node)
            node = above[node]
        paths.append(np.asarray(path[::-1], np.int32))
    return paths


def path_to(parents: Ints, node: int) -> Ints:
    """Node indices from below the root to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return np.asarray(path[::-1], np.int32)


@dataclass(frozen=True, slots=True)
class _Lane:
    """One lane before it is packed: the row whose blocks it reads, its key count, and, in a tree, its queries among
    the packed tokens and the slots of its path."""

    row: int
    length: int
    queries: Ints
    tail: Ints


class Packing:
    """One pass over `rows`, row r computing `chunk[r]` known tokens and then its tree. `ends[r]` says whether its last
    known token is computed, so that tokens can be drawn; `depth` is every node's depth."""

    def __init__(self, rows: Rows[Sequence], chunk: list[int], trees: Trees, *, windows: bool = False) -> None:
        self.ends: list[bool] = []
        tokens, positions, slots, out, depth = [], [], [], [], []
        lanes: list[_Lane] = []
        bounds = trees.offsets.tolist()
        start = 0
        branching = False
        for row, sequence in enumerate(rows):
            size, count = chunk[row], bounds[row + 1] - bounds[row]
            first, reached = sequence.cached, sequence.cached + size
            own = np.arange(start, start + size + count, dtype=np.int32)
            start += size + count
            self.ends.append(reached == sequence.known)
            tokens.append(sequence.buffer[first:reached])
            positions.append(np.arange(first, reached, dtype=np.int32))
            slots.append(sequence.slots[first : reached + count])
            if self.ends[-1]:
                out.append(own[size - 1 :])
            parents = trees.parents[bounds[row] : bounds[row + 1]]
            chain = is_chain(parents)
            branching |= not chain
            depth.append(np.arange(1, count + 1, dtype=np.int32) if chain else depths(parents))
            if windows or chain:
                lanes.append(_Lane(row, reached + count, own, NO_INTS))
            else:
                lanes += _tree_lanes(row, sequence, parents, own, size)
            if count:
                tokens.append(trees.tokens[bounds[row] : bounds[row + 1]])
                positions.append(reached - 1 + depth[-1])
        self.depth = _joined(depth)
        packed = _packed(lanes, rows, branching and not windows)
        seen = _with_ancestors(packed, trees) if branching and windows else packed
        self.work = Pass(_joined(tokens), _joined(positions), _joined(slots), seen, _joined(out))


def _tree_lanes(row: int, sequence: Sequence, parents: Ints, own: Ints, chunk: int) -> list[_Lane]:
    known = sequence.known
    lanes = []
    for index, path in enumerate(leaf_paths(parents)):
        queries = own[chunk + path] if index else np.concatenate([own[:chunk], own[chunk + path]])
        lanes.append(_Lane(row, known + len(path), queries, sequence.slots[known + path]))
    return lanes


def _packed(lanes: list[_Lane], rows: Rows[Sequence], branching: bool) -> Lanes:
    tables = np.zeros((len(lanes), max(len(row.table) for row in rows)), np.int32)
    for index, lane in enumerate(lanes):
        table = rows[lane.row].table
        tables[index, : len(table)] = table
    lengths = np.fromiter((lane.length for lane in lanes), np.int32, len(lanes))
    offsets = _bounds([len(lane.queries) for lane in lanes])
    if not branching:
        return Lanes(offsets, lengths, tables)
    queries = np.concatenate([lane.queries for lane in lanes])
    tails = np.concatenate([lane.tail for lane in lanes])
    return Lanes(offsets, lengths, tables, queries, _bounds([len(lane.tail) for lane in lanes]), tails)


def _with_ancestors(lanes: Lanes, trees: Trees) -> Windows:
    """The rows' windows, each of whose last tokens are its tree."""
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


def _bounds(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else NO_INTS
