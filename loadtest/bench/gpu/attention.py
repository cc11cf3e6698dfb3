"""Measures the part `attention` of the bench `gpu`: bytes a second that attention reads its keys and values with, as
the product launches it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from covey.contracts.types import JsonDict
from covey.models.attention import Shape
from covey.models.lanes import Lanes, windows_of
from loadtest.bench.gpu.kernels import bandwidth, store_of
from loadtest.bench.gpu.rig import BLOCK_SIZE, Rig
from loadtest.bench.gpu.timing import captured, over
from loadtest.bench.passes import PassCase

REPEATS = 10


CASES = (PassCase(1, 512), PassCase(1, 4096), PassCase(64, 1024), PassCase(64, 1024, 5))
SMALL = (PassCase(1, 64), PassCase(2, 48, 3))


def attention(rig: Rig, found: JsonDict) -> None:
    cases = CASES if rig.on_gpu else SMALL
    found |= {case.name: None for case in cases}
    if not rig.kernels:
        return
    most = max(case.rows * case.context for case in cases)
    store = store_of(rig, -(-most // BLOCK_SIZE))
    limit = bandwidth(rig)
    for case in cases:
        launched = _Launched(rig, store, case)
        rate = launched.rate()
        found[case.name] = {
            "bytes_per_s": rate,
            "share_of_copy": over(rate, limit),
            "launched_as": {**asdict(launched.launch), "parts": launched.tiles.parts},
        }


class _Launched:
    """Launches one case's tiles over all layers: of a single one a cache would hold the keys."""

    def __init__(self, rig: Rig, store: Any, case: PassCase) -> None:
        from covey.gpu.inputs import Inputs
        from covey.gpu.kernels.attention import Parts, launch_of, rows_of
        from covey.gpu.tilings import Tiling, programs_of

        self._rig, self._store, self._case = rig, store, case
        self._shape = Shape(rig.heads, rig.kv_heads, rig.head_dim)
        work = case.work(store.blocks, rig.session.wanted.seed)
        assert isinstance(work.lanes, Lanes)
        tiling = Tiling(self._shape.share, rig.kv_heads, programs_of(rig.device), rig.dtype == torch.float32)
        inputs = Inputs(work.size, work.lanes.tables.shape[1], 32, tiling, rig.device)
        bucket = inputs.fill(work, windows_of(work.lanes))
        self.tiles = inputs.tiles(bucket)
        tokens = bucket.tokens
        self._query = torch.randn(tokens, rig.heads, rig.head_dim, device=rig.device).to(rig.dtype)
        self._out = torch.zeros_like(self._query)
        most = self.tiles.parts * tokens * rig.heads
        self._parts = Parts(
            torch.empty(most * rig.head_dim, device=rig.device), torch.full((most,), -torch.inf, device=rig.device)
        )
        rows = rows_of(self.tiles.tokens, self._shape.share)
        self.launch = launch_of(rows, self._shape.head_dim, rig.dtype == torch.float32)

    def rate(self) -> float | None:
        """Return the bytes of keys and values a second."""
        rig, case = self._rig, self._case
        size = 2 * rig.layers * case.rows * case.context * rig.kv_heads * rig.head_dim * rig.dtype.itemsize
        return over(size, captured(self._all_layers, rig.device, REPEATS))

    def _all_layers(self) -> None:
        from covey.gpu.kernels.attention import attend

        store = self._store
        for layer in range(self._rig.layers):
            attend(
                self._query,
                store.pool,
                store.offsets,
                self._out,
                self.tiles,
                self._parts,
                store.layout,
                layer_offset=layer * store.layout.layer,
                scale=self._shape.head_dim**-0.5,
                launch=self.launch,
            )
