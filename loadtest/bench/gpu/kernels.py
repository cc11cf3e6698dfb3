"""Measures parts of the bench `gpu` that need no model: what the device can do, and how near single kernels come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from covey.contracts.types import JsonDict, Sampling
from covey.noise.noise import Index, Purpose, keys
from covey.sampling.drawing import SettingsTable, draw, draw_on_host
from loadtest.bench.gpu.rig import BLOCK_SIZE, Rig
from loadtest.bench.gpu.timing import captured, milliseconds, over, queued, waited

COPIED = 4 << 30  # bytes of each buffer, far more than any cache
SIDE = 8192  # of the matrices
ROWS = (1, 64, 320)
TEMPERATURES = (0.0, 1.0)


def ceilings(rig: Rig, found: JsonDict) -> None:
    """Measure what a copy and a matrix product reach; a copy reads and writes, and both count."""
    found |= {"copy_bytes_per_s": None, "product_flops_per_s": None}
    if not rig.on_gpu:
        return
    free, _ = torch.cuda.mem_get_info(rig.device)
    size = min(COPIED, free // 8)
    found["copy_bytes_per_s"] = over(2 * size, queued(_copy_of(rig, size), rig.device))
    left, right = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=rig.device) for _ in range(2))
    out = torch.empty_like(left)
    found["product_flops_per_s"] = over(2 * SIDE**3, queued(lambda: torch.mm(left, right, out=out), rig.device))


def _copy_of(rig: Rig, size: int) -> Callable[[], object]:
    """Return a copy of so many bytes from one place of the device to another."""
    source = torch.ones(size, dtype=torch.uint8, device=rig.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def bandwidth(rig: Rig) -> float | None:
    """Return the copy's bytes a second, measured now where no part has."""
    if "ceilings" not in rig.results:
        ceilings(rig, rig.results.setdefault("ceilings", {}))
    found: float | None = rig.results["ceilings"].get("copy_bytes_per_s")
    return found


def draws(rig: Rig, found: JsonDict) -> None:
    """Time a target's draws, by kernels and with the race's end on the host."""
    for rows in ROWS if rig.on_gpu else ROWS[:2]:
        logits = 3.0 * torch.randn(rows, rig.config.vocab_size, device=rig.device)
        for temperature in TEMPERATURES:
            found[f"{rows} at {temperature:g}"] = _drawn(rig, logits, temperature)


def _drawn(rig: Rig, logits: torch.Tensor, temperature: float) -> JsonDict:
    rows, repeats = len(logits), 20 if rig.on_gpu else 2
    table = SettingsTable(rows)
    slots = np.asarray([table.add(Sampling(temperature=temperature, seed=seed), 1) for seed in range(rows)], np.int32)
    positions = np.arange(rows, dtype=np.int32) + 7
    places = slots.astype(np.int64), positions.astype(np.int64)
    on_host = waited(lambda: draw_on_host(logits, logits, table, *places), rig.device, min(repeats, 5))
    return {
        "kernels_ms": milliseconds(_kernels(rig, logits, table, *places)),
        "call_ms": 1000 * waited(lambda: draw(logits, table, slots, positions), rig.device, repeats),
        "host_ms": 1000 * on_host,
    }


def _kernels(rig: Rig, logits: torch.Tensor, table: SettingsTable, slots: Index, positions: Index) -> float | None:
    """Return the seconds of the kernels alone."""
    if not rig.on_gpu:
        return None
    from covey.gpu.kernels.draws import DeviceDraw

    drawing = DeviceDraw(len(slots), logits.shape[1], rig.device)
    row_keys = keys(table.seed[slots], positions, Purpose.COUPLED)
    drawing.give(table.temperature[slots], row_keys, np.zeros(len(slots), np.bool_))
    return captured(lambda: drawing.launch(logits), rig.device, inner=10)


def store_of(rig: Rig, blocks: int) -> Any:
    """Return KV memory of at least so many blocks of the target's shape, filled with noise."""
    from covey.gpu.kernels.layout import Layout
    from covey.gpu.model import SEGMENT_BYTES
    from covey.gpu.store import KVStore

    block = rig.layers * 2 * rig.kv_heads * BLOCK_SIZE * rig.head_dim * rig.dtype.itemsize
    segment = min(max(1, SEGMENT_BYTES // block), blocks)
    segments = -(-blocks // segment)
    store = KVStore(
        Layout(rig.layers, rig.kv_heads, rig.head_dim, BLOCK_SIZE, segment),
        segments=segments,
        most_segments=segments,
        dtype=rig.dtype,
        device=rig.device,
    )
    for index in range(segments):
        store.segment(index).normal_()
    return store
