"""Attention over a paged pool of keys and values, for lanes of any lengths in one pass.

Lanes are sorted into groups of about equal length and query count. Each group is two batched products over gathered,
padded keys. A query's result must not depend on its group. So padding is masked to exact zeros, and each key stands in
the column of its position. Values are summed over spans of keys at the same positions in every group. Libraries change
their order of summation with the number of keys, so spans are short and all full spans have the same shape.
`numerics.py` checks whether those shapes are invariant here.

Pool layout, per layer: [2 * kv_heads, slots, head_dim], keys first. With heads outermost, neither a gather of whole
blocks nor the batched product needs a transposing copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from covey.contracts.types import Ints
from covey.models.lanes import Lanes
from covey.models.rows import by_rows, padded

QUERY_TILE = 64  # longer lanes are cut: this bounds the mask, and skips keys that a chunk's first queries cannot see
# Bytes of a group's keys, values and weights. Much larger memory is allocated from the system anew each time.
AT_ONCE = 16 << 20
SINK_KEYS = 32  # columns before the first key if there are sinks, to keep vectors whole; only one holds the sink
WORTH_A_GROUP = 1200  # padded keys that cost more than the calls of one more group (measured)

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of one layer's attention. All layers of a served model have the same, except for the window."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def share(self) -> int:
        """Return the number of query heads per key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shapes that products are padded to, so that each row's sum has one order."""

    rows: int = 1  # the rows of a pass are padded to a multiple of this
    queries: int = 1  # the queries of a lane are padded to a multiple of this
    keys: int = 32  # the keys of a lane are padded to a multiple of this
    span: int = 0  # lanes with more keys are padded to a multiple of this, and values summed span by span; 0: never

    def __post_init__(self) -> None:
        if min(self.rows, self.queries, self.keys, self.span + 1) < 1:
            raise ValueError(f"{self}: no product can have such shapes")


@dataclass(slots=True)
class Group:
    """Lanes attended together: R lanes of `queries` queries each over `keys` padded keys."""

    rows: int
    queries: int
    keys: int
    pick: torch.Tensor | None  # packed tokens, [R * queries]; None: the whole pass in order
    gather: torch.Tensor  # blocks [R * keys / block_size], or slots [R * keys] if `by_slot`
    by_slot: bool
    last: Ints  # [R, queries]: the last key that each query sees
    masks: dict[int, torch.Tensor] = field(default_factory=dict)  # by window, 0 for none


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the layers of a pass share. Masks are made on first use."""

    groups: tuple[Group, ...]
    scatter: torch.Tensor | None  # the index of each packed token in the groups' joined results; None: in order
    shape: Shape
    block_size: int
    span: int  # number of keys whose values are summed at once; 0: all
    dtype: torch.dtype


def plan_lanes(
    lanes: Lanes,
    size: int,
    *,
    shape: Shape,
    block_size: int,
    tiling: Tiling,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """Return the groups for `lanes` of a pass of `size` packed tokens, which may end with padding that is in no
    lane."""
    lanes = _cut(lanes)
    counts = lanes.counts
    tile = math.lcm(tiling.keys, block_size)
    span = math.lcm(tiling.span, tile)  # 0 stays 0
    groups: list[Group] = []
    picks: list[Ints] = []
    for members in _partition(counts, lanes.lengths, shape, dtype.itemsize):
        group, pick = _group(lanes, counts, members, (tile, span), tiling.queries, block_size, device)
        groups.append(group)
        picks.append(pick)
    joined = picks[0] if len(picks) == 1 else np.concatenate(picks)
    scatter: torch.Tensor | None = None
    if len(picks) > 1 or len(joined) != size or not np.array_equal(joined, np.arange(size, dtype=np.int32)):
        where = np.zeros(size, np.int64)
        where[joined] = np.arange(len(joined))
        scatter = torch.from_numpy(where).to(device)
        for group, pick in zip(groups, picks):
            group.pick = torch.from_numpy(pick).to(device)
    return Plan(tuple(groups), scatter, shape, block_size, span, dtype)


def attend(
    plan: Plan,
    query: torch.Tensor,
    pool: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return results [T, heads * head_dim] for queries [T, heads, head_dim] over one layer's pool. With `sinks`
    [heads], the weights of a head's keys and its sink add up to one."""
    shape = plan.shape
    kv_heads, share, dim = shape.kv_heads, shape.share, shape.head_dim
    results = []
    for group in plan.groups:
        rows, keys = group.rows, group.keys
        if group.by_slot:
            kv = pool.index_select(1, group.gather)
        else:
            kv = pool.view(2 * kv_heads, -1, plan.block_size * dim).index_select(1, group.gather)
        kv = kv.view(2, kv_heads * rows, keys, dim)
        q = query if group.pick is None else query.index_select(0, group.pick)
        q = q.view(rows, group.queries, kv_heads, share, dim).permute(2, 0, 1, 3, 4)
        q = q.reshape(kv_heads * rows, group.queries * share, dim)
        mask = group.masks.get(window)
        if mask is None:
            mask = group.masks[window] = _mask(group, shape, window, plan.dtype, query.device)
        held = None if sinks is None else _per_query(sinks, rows, group.queries, shape)
        values = weighed(q, kv, mask, scale, softcap, plan.span, held)
        values = values.view(kv_heads, rows, group.queries, share, dim).permute(1, 2, 0, 3, 4)
        results.append(values.reshape(rows * group.queries, -1))
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined if plan.scatter is None else joined.index_select(0, plan.scatter)


def weighed(
    queries: torch.Tensor,
    kv: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float,
    span: int,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the values in `kv` [2, R, K, D], keys first, weighed for `queries` [R, M, D] under an additive mask. If
    there are more keys than a `span`, one batched call multiplies each span separately. The results are added in order,
    in float32; spans that a query does not see add zeros. `sinks` [R, M, 1] are scores of keys without values."""
    alpha = scale
    if queries.dtype in (torch.float32, torch.float64):  # MKL would scale a factor or the result, depending on shapes
        queries, alpha = queries * scale, 1.0
    if softcap:
        scores = torch.bmm(queries, kv[0].transpose(1, 2)) * (alpha / softcap)
        scores = by_rows(torch.tanh, scores) * softcap + mask
    else:
        scores = torch.baddbmm(mask, queries, kv[0].transpose(1, 2), alpha=alpha)
    if sinks is None:
        weights = torch.softmax(scores, -1)
    else:
        before = torch.nn.functional.pad(sinks, (0, SINK_KEYS - 1), value=-torch.inf)
        weights = torch.softmax(torch.cat((before, scores), -1), -1)[..., SINK_KEYS:].contiguous()
    rows, count, keys = weights.shape
    if not span or keys <= span:
        return torch.bmm(weights, kv[1])
    spans = keys // span
    apart = weights.view(rows, count, spans, span).transpose(1, 2).reshape(rows * spans, count, span)
    sums = torch.bmm(apart, kv[1].view(rows * spans, span, -1))
    return sums.view(rows, spans, count, -1).sum(1)


def _per_query(sinks: torch.Tensor, rows: int, queries: int, shape: Shape) -> torch.Tensor:
    """Return sinks [heads] in the layout that `weighed` takes."""
    by_head = sinks.view(shape.kv_heads, 1, 1, shape.share).expand(-1, rows, queries, -1)
    return by_head.reshape(shape.kv_heads * rows, queries * shape.share, 1)


def _cut(lanes: Lanes) -> Lanes:
    """Return the same work with at most `QUERY_TILE` queries in a lane."""
    counts = lanes.counts
    if len(counts) == 0 or counts.max() <= QUERY_TILE:
        return lanes
    pieces = -(-counts // QUERY_TILE)
    row = np.repeat(np.arange(len(counts)), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = piece * QUERY_TILE
    took = np.minimum(counts[row] - start, QUERY_TILE)
    lengths = lanes.lengths[row] - counts[row] + start + took
    offsets = np.append(lanes.offsets[row] + start, lanes.offsets[-1]).astype(np.int32)
    tail_offsets, tails = None, lanes.tails
    if lanes.tail_offsets is not None:
        plain = (lanes.lengths - np.diff(lanes.tail_offsets))[row]
        sizes = np.maximum(lengths - plain, 0)
        tail_offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
        tails = np.concatenate([tails[a : a + n] for a, n in zip(lanes.tail_offsets[row], sizes)])
    return Lanes(offsets, lengths.astype(np.int32), lanes.tables[row], lanes.queries, tail_offsets, tails)


def _partition(counts: Ints, lengths: Ints, shape: Shape, itemsize: int) -> list[Ints]:
    """Return the lanes of each group: query counts within a factor of two, little padding, and at most `AT_ONCE`."""
    everyone = np.arange(len(counts), dtype=np.int32)
    classes = np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int32)
    parts: list[Ints] = []
    for kind in np.unique(classes):
        members = everyone[classes == kind]
        bytes_per_key = 2 * (shape.head_dim + (1 << int(kind)) * shape.share) * shape.kv_heads * itemsize
        top, total = int(lengths[members].max()), int(lengths[members].sum())
        if top * len(members) - total <= WORTH_A_GROUP and top * len(members) * bytes_per_key <= AT_ONCE:
            parts.append(members)
            continue
        members = members[np.argsort(-lengths[members], kind="stable")]
        begin, waste = 0, 0
        for at in range(len(members)):
            longest = int(lengths[members[begin]])
            waste += longest - int(lengths[members[at]])
            size = longest * (at + 1 - begin) * bytes_per_key
            if at > begin and (waste > WORTH_A_GROUP or size > AT_ONCE):
                parts.append(members[begin:at])
                begin, waste = at, 0
        parts.append(members[begin:])
    return parts


def _group(
    lanes: Lanes,
    counts: Ints,
    members: Ints,
    tiles: tuple[int, int],
    granule: int,
    block_size: int,
    device: torch.device,
) -> tuple[Group, Ints]:
    rows = len(members)
    count = counts[members]
    lengths = lanes.lengths[members]
    queries = padded(int(count.max()), granule)
    keys, (tile, span) = int(lengths.max()), tiles
    unit = span if span and keys > span else tile
    keys = -(-keys // unit) * unit
    step = np.minimum(np.arange(queries, dtype=np.int32), count[:, None] - 1)  # padding repeats the last query
    pick = (lanes.offsets[members][:, None] + step).reshape(-1)
    if lanes.queries is not None:
        pick = lanes.queries[pick]
    last = lengths[:, None] - count[:, None] + step

    blocks = keys // block_size
    table = lanes.tables[members, :blocks]
    if table.shape[1] < blocks:
        table = np.pad(table, ((0, 0), (0, blocks - table.shape[1])))
    starts = np.arange(0, keys, block_size, dtype=np.int32)
    table = np.where(starts < lengths[:, None], table, table[:, :1])  # NaN gets through masks: pad with its own block
    by_slot = lanes.tail_offsets is not None and bool((np.diff(lanes.tail_offsets)[members] > 0).any())
    if by_slot:
        assert lanes.tail_offsets is not None
        index = (table[:, :, None] * block_size + np.arange(block_size, dtype=np.int32)).reshape(rows, keys)
        begin = lanes.tail_offsets[members]
        size = lanes.tail_offsets[members + 1] - begin
        at = np.arange(keys, dtype=np.int32)
        behind = at - (lengths - size)[:, None]  # index in the tail
        inside = (behind >= 0) & (behind < size[:, None])
        index[inside] = lanes.tails[(begin[:, None] + behind)[inside]]
    else:
        index = table
    gather = torch.from_numpy(np.ascontiguousarray(index).reshape(-1)).to(device)
    return Group(rows, queries, keys, None, gather, by_slot, last), pick.astype(np.int32)


def _mask(group: Group, shape: Shape, window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return 0 where a query sees a key and -inf elsewhere, in the layout of the scores."""
    at = np.arange(group.keys, dtype=np.int32)
    hidden: Bools = at > group.last[:, :, None]
    if window:
        hidden |= at <= group.last[:, :, None] - window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)
    mask = mask.to(device)[None, :, :, None].expand(shape.kv_heads, -1, -1, shape.share, -1)
    return mask.reshape(shape.kv_heads * group.rows, group.queries * shape.share, group.keys)
