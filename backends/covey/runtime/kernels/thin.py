"""Products of few rows with a large matrix, and what lies around them, in one reading of the matrix: the norm of what
goes in; bias, gate or residual sum of what comes out. Such products are bound by the matrix's bytes, and a layer of few
tokens by the number of its kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from covey.runtime.kernels import INTERPRETED, PRECISION

ROWS = 16  # at most: what a tensor core multiplies at once
COLUMNS, DEPTH, WARPS, STAGES = 32, 256, 4, 4  # of the matrix at a time: some 64 KB on their way to each core


@triton.jit
def thin_product(
    x,
    weight,
    bias,
    norm,
    residual,
    out,
    rows,
    epsilon,
    K: tl.constexpr,
    N: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [rows, N] = x [rows, K] @ weight [N, K].T. Where `NORMED`, of x's root-mean-square norm times `norm`; where
    `GATED`, silu of it times the product with the next N rows of `weight`; where `ADDED`, plus `residual`, which may be
    `out`. Rounds where the unfused operations would."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, M)
    deep = tl.arange(0, DEPTH)
    there, inside = row < rows, column < N
    kind = x.dtype.element_ty
    lines = x + row[:, None] * K + deep[None, :]
    matrix = weight + column.to(tl.int64)[:, None] * K + deep[None, :]
    size = tl.zeros([M], tl.float32)
    if NORMED:
        for start in range(0, K, DEPTH):
            part = tl.load(lines + start, mask=there[:, None] & (deep + start < K)[None, :], other=0.0).to(tl.float32)
            size += tl.sum(part * part, 1)
        size = tl.rsqrt(size / K + epsilon)
    total = tl.zeros([M, COLUMNS], tl.float32)
    second = tl.zeros([M, COLUMNS], tl.float32)
    for start in range(0, K, DEPTH):
        known = deep + start < K
        part = tl.load(lines + start, mask=there[:, None] & known[None, :], other=0.0)
        if NORMED:
            scale = tl.load(norm + start + deep, mask=known, other=0.0).to(tl.float32)
            part = ((part.to(tl.float32) * size[:, None]).to(kind).to(tl.float32) * scale[None, :]).to(kind)
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
    spot = row[:, None] * N + column[None, :]
    keep = there[:, None] & inside[None, :]
    if ADDED:
        total = tl.load(residual + spot, mask=keep, other=0.0).to(tl.float32) + total.to(kind).to(tl.float32)
    tl.store(out + spot, total.to(kind), mask=keep)


def multiply_thin(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> None:
    """See `thin_product`; at most `ROWS` rows."""
    rows, depth = x.shape
    width = out.shape[1]
    thin_product[(triton.cdiv(width, COLUMNS),)](
        x,
        weight,
        x if bias is None else bias,
        x if norm is None else norm,
        x if residual is None else residual,
        out,
        rows,
        epsilon,
        K=depth,
        N=width,
        NORMED=norm is not None,
        BIASED=bias is not None,
        ADDED=residual is not None,
        GATED=gated,
        M=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=min(DEPTH, triton.next_power_of_2(depth)),
        WIDE=INTERPRETED,
        PRECISION=PRECISION,
        num_warps=WARPS,
        num_stages=STAGES if not gated else STAGES - 1,
    )
