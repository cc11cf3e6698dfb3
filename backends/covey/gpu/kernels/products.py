"""Products with a large matrix, fused with the bias, gate or residual sum of the result; the matrix is read once.

With blocks of one shape for any number of rows, each row's sums are taken in the same order (`fixed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from covey.gpu.kernels import INTERPRETED, PRECISION


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a product that one program computes, `depth` terms of the sums at a time."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4


WIDE = 16384  # columns from which programs of 128 columns keep a GPU busy


def fixed(columns: int, itemsize: int, gated: bool = False) -> Block:
    """Return the block for results of `columns` columns, with elements of `itemsize` bytes. One instruction multiplies
    64 rows, and a core fits two programs or more."""
    if itemsize > 2:
        return Block(32, 32, 64, 3)
    if columns < WIDE:
        return Block(64, 32, 128, 4)
    return Block(64, 64 if gated else 128, 64, 4)


@triton.jit(do_not_specialize=["rows"])  # compiled once, so that the arithmetic is the same for any number of rows
def block_product(
    x,
    weight,
    bias,
    out,
    rows,
    K: tl.constexpr,
    N: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute out [rows, N] = x [rows, K] @ weight [N, K].T. If `GATED`, multiply silu of that by the product with the
    next N rows of `weight`. If `ADDED`, add to the contents of `out`. Rounds where the unfused operations would.
    Programs of the same columns run one after another, so that all but the first find the matrix in a cache."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * M + tl.arange(0, M)
    deep = tl.arange(0, DEPTH)
    there, inside = row < rows, column < N
    kind = x.dtype.element_ty
    lines = x + row.to(tl.int64)[:, None] * K + deep[None, :]
    matrix = weight + column.to(tl.int64)[:, None] * K + deep[None, :]
    total = tl.zeros([M, COLUMNS], tl.float32)
    second = tl.zeros([M, COLUMNS], tl.float32)
    for start in range(0, K, DEPTH):
        known = deep + start < K
        part = tl.load(lines + start, mask=there[:, None] & known[None, :], other=0.0)
        mask = inside[:, None] & known[None, :]
        read = tl.load(matrix + start, mask=mask, other=0.0)
        if WIDE:
            part = part.to(tl.float32)
            read = read.to(tl.float32)
        total = tl.dot(part, tl.trans(read), total, input_precision=PRECISION)
        if GATED:
            read = tl.load(matrix + N * K + start, mask=mask, other=0.0)
            if WIDE:
                read = read.to(tl.float32)
            second = tl.dot(part, tl.trans(read), second, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    total = total.to(kind).to(tl.float32)
    if GATED:
        if BIASED:
            second += tl.load(bias + N + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        total = total / (1.0 + tl.exp(-total)) * second.to(kind).to(tl.float32)
    spot = row.to(tl.int64)[:, None] * N + column[None, :]
    keep = there[:, None] & inside[None, :]
    if ADDED:
        total = tl.load(out + spot, mask=keep, other=0.0).to(tl.float32) + total.to(kind).to(tl.float32)
    tl.store(out + spot, total.to(kind), mask=keep)


def multiply(
    block: Block,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    added: bool = False,
    gated: bool = False,
) -> None:
    """See `block_product`."""
    rows, depth = x.shape
    width = out.shape[1]
    block_product[(triton.cdiv(rows, block.rows), triton.cdiv(width, block.columns))](
        x,
        weight,
        x if bias is None else bias,
        out,
        rows,
        K=depth,
        N=width,
        BIASED=bias is not None,
        ADDED=added,
        GATED=gated,
        M=block.rows,
        COLUMNS=block.columns,
        DEPTH=max(16, min(block.depth, triton.next_power_of_2(depth))),
        WIDE=INTERPRETED,
        PRECISION=PRECISION,
        num_warps=block.warps,
        num_stages=block.stages - gated,
    )
