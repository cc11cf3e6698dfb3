"""Measures the part `attention` of the bench `gpu`: bytes a second that attention reads its keys and values with, as
the product launches it, and over the settings that it could be launched with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from covey.contracts.types import JsonDict
from covey.models.attention import Shape
from covey.models.lanes import Lanes, windows_of
from loadtest.bench.gpu.kernels import bandwidth, store_of
from loadtest.bench.gpu.rig import BLOCK_SIZE, Rig
from loadtest.bench.gpu.timing import captured, over
from loadtest.bench.passes import PassCase

if TYPE_CHECKING:
    from covey.gpu.kernels.attention import Launch

KEYS, WARPS, PARTS, STAGES = (32, 64, 128), (2, 4, 8), (1, 2, 4, 8, 16, 32), (2, 3, 4)
REPEATS = 10


CASES = (PassCase(1, 512), PassCase(1, 4096), PassCase(64, 1024), PassCase(64, 1024, 5))
SMALL = (PassCase(1, 64), PassCase(2, 48, 3))


@dataclass(frozen=True)
class Setting:
    """Says how attention is launched, and in how many parts."""

    launch: Launch
    parts: int


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
        product = launched.product()
        rates = {setting: launched.rate(setting) for setting in _settings(rig, product)}
        known = {setting: rate for setting, rate in rates.items() if rate is not None}
        best = max(known, key=lambda setting: known[setting], default=None)
        found[case.name] = {
            "bytes_per_s": rates[product],
            "share_of_copy": over(rates[product], limit),
            "launched_as": vars_of(product),
            "best": None if best is None else {**vars_of(best), "share_of_copy": over(known[best], limit)},
            "sweep": [{**vars_of(setting), "bytes_per_s": rate} for setting, rate in rates.items()],
        }


def vars_of(setting: Setting) -> JsonDict:
    return {**asdict(setting.launch), "parts": setting.parts}


def _settings(rig: Rig, product: Setting) -> list[Setting]:
    from covey.gpu.kernels.attention import Launch

    if rig.small:
        return [product, Setting(Launch(32, 4, 2), 2)]
    near = [parts for parts in PARTS if product.parts // 4 <= parts <= product.parts * 4]
    usual = product.launch
    swept = [Setting(Launch(keys, warps, usual.stages), parts) for keys in KEYS for warps in WARPS for parts in near]
    staged = [Setting(Launch(keys, usual.warps, stages), product.parts) for keys in KEYS for stages in STAGES]
    return list(dict.fromkeys([product, *swept, *staged]))


class _Launched:
    """Launches one case's tiles over all layers: of a single one a cache would hold the keys."""

    def __init__(self, rig: Rig, store: Any, case: PassCase) -> None:
        from covey.gpu.inputs import Inputs
        from covey.gpu.tilings import Tiling, programs_of

        self._rig, self._store, self._case = rig, store, case
        self._shape = Shape(rig.heads, rig.kv_heads, rig.head_dim)
        work = case.work(store.blocks, rig.session.wanted.seed)
        assert isinstance(work.lanes, Lanes)
        tiling = Tiling(self._shape.share, rig.kv_heads, programs_of(rig.device), rig.dtype == torch.float32)
        inputs = Inputs(work.size, work.lanes.tables.shape[1], 32, tiling, rig.device)
        bucket = inputs.fill(work, windows_of(work.lanes))
        self._tiles = inputs.tiles(bucket)
        tokens = bucket.tokens
        self._query = torch.randn(tokens, rig.heads, rig.head_dim, device=rig.device).to(rig.dtype)
        self._out = torch.zeros_like(self._query)
        most = max(self._tiles.parts, *PARTS) * tokens * rig.heads
        self._partial = torch.empty(most * rig.head_dim, device=rig.device)
        self._heights = torch.full((most,), -torch.inf, device=rig.device)

    def product(self) -> Setting:
        """Return the setting that the product launches it with."""
        from covey.gpu.kernels.attention import launch_of, rows_of

        rows = rows_of(self._tiles.tokens, self._shape.share)
        wide = self._rig.dtype == torch.float32
        return Setting(launch_of(rows, self._shape.head_dim, wide), self._tiles.parts)

    def rate(self, setting: Setting) -> float | None:
        """Return the bytes of keys and values a second; None where a GPU cannot run it so."""
        rig, case = self._rig, self._case
        size = 2 * rig.layers * case.rows * case.context * rig.kv_heads * rig.head_dim * rig.dtype.itemsize
        try:
            return over(size, captured(lambda: self._all_layers(setting), rig.device, REPEATS))
        except Exception as error:
            if not rig.on_gpu or torch.cuda.is_current_stream_capturing():
                raise
            rig.session.console.print(f"attention of {case.name} as {setting}: {type(error).__name__}: {error}"[:200])
            return None

    def _all_layers(self, setting: Setting) -> None:
        from covey.gpu.kernels.attention import Parts, attend

        store = self._store
        for layer in range(self._rig.layers):
            attend(
                self._query,
                store.pool,
                store.offsets,
                self._out,
                replace(self._tiles, parts=setting.parts),
                Parts(self._partial, self._heights),
                store.layout,
                layer_offset=layer * store.layout.layer,
                scale=self._shape.head_dim**-0.5,
                launch=setting.launch,
            )
