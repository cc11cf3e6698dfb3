"""The elementwise parts of a layer, each in one pass over its data: residual sum with norm, and the gate."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_and_norm(
    stream, delta, weight, out, epsilon, ADDED: tl.constexpr, WIDTH: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """Compute for a token: stream += delta (where `ADDED`), out = root-mean-square norm of the stream, times weight."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, W)
    known = at < WIDTH
    x = tl.load(stream + token * WIDTH + at, mask=known, other=0.0).to(tl.float32)
    if ADDED:
        x += tl.load(delta + token * WIDTH + at, mask=known, other=0.0).to(tl.float32)
        x = x.to(stream.dtype.element_ty).to(tl.float32)
        tl.store(stream + token * WIDTH + at, x.to(stream.dtype.element_ty), mask=known)
    x *= tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon)
    x = x.to(out.dtype.element_ty).to(tl.float32)  # the models round before they multiply by the weight
    x *= tl.load(weight + at, mask=known, other=0.0).to(tl.float32)
    tl.store(out + token * WIDTH + at, x.to(out.dtype.element_ty), mask=known)


@triton.jit
def gate(both, out, SIZE: tl.constexpr, S: tl.constexpr):
    """Compute silu(first half) * second half, for one token and a piece of the width."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * S + tl.arange(0, S)
    known = at < SIZE
    x = tl.load(both + token * 2 * SIZE + at, mask=known, other=0.0).to(tl.float32)
    up = tl.load(both + token * 2 * SIZE + SIZE + at, mask=known, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + at, (x / (1.0 + tl.exp(-x)) * up).to(out.dtype.element_ty), mask=known)
