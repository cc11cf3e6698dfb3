"""One budget of memory: what weights, drafters and KV pools get of each device.

    target.memory * what is free  >=  processes + weights + tokens * (a token's bytes, in the target's pool and each
                                                                      drafter's)

All pools have room for the same tokens: as many as fit, and no more than `scheduler.max_running` of the longest
requests need. A size that the profile says is taken as it is, of all that is free. Reads no weights.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.profile import BLOCK, DrafterSettings, Profile, TargetSettings, with_tokens
from covey.models import dtypes, heads, refusals, stored
from covey.models.native import KINDS, SMALL, architecture, sizes
from covey.process import cpu, interpreter
from covey.process.footprint import available
from covey.runtimes.choice import TORCH, check_bytes, has_gpu, may_have_gpu

LEAST = 1024  # tokens of the least pool that is worth a start
MOST = (1 << 31) - (1 << 21)  # tokens, whose places are numbers of 32 bits
SERVER, DRAFTER = 768 << 20, 192 << 20  # measured with the bundled models: a server's processes, and each drafter's
CPU, GPU = "cpu", "cuda"
HEAD_BLOCKS = 1024  # most KV blocks of a target's own head; it forgets the texts that it drafted for longest ago
NO_PRODUCT: tuple[int, ...] = (0, 0)  # the shape of what makes states for a head, where there is none
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_LOOK = """
import json
from dataclasses import astuple
from covey.runtimes.budget import gpu
print(json.dumps(astuple(gpu("auto"))))
"""
_SHAPE = """
import json, sys
from pathlib import Path
from covey.models import loading, modules
config = loading.read_config(Path(sys.argv[1]))
shape = modules.shape_of(config)
found = config.num_hidden_layers, shape.kv_heads, shape.head_dim, loading.find_max_positions(config)
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as PyTorch sees it; without bytes there is none."""

    free: int = 0  # bytes
    bfloat16: bool = False  # it multiplies that


@dataclass(frozen=True, slots=True)
class Part:
    """A model in memory."""

    name: str
    device: str
    weights: int  # bytes
    token: int  # bytes of its keys and values
    longest: int  # tokens of a text
    pool: int = 0  # bytes; 0: by the budget


def gpu(device: str) -> Gpu:
    """Return the GPU that a model on `device` may be on. Asking PyTorch takes memory of the GPU."""
    if device == CPU or not has_gpu():
        return Gpu()
    import torch

    return Gpu(torch.cuda.mem_get_info()[0], torch.cuda.is_bf16_supported())


def gpu_seen_apart() -> Gpu:
    """Return the GPU as another process sees it: this one then holds neither PyTorch nor anything of the device."""
    return Gpu(*_asked(_LOOK)) if may_have_gpu() else Gpu()


def tokens(parts: Sequence[Part], free: Mapping[str, int], chosen: Profile) -> int:
    """Return how many tokens each KV pool has room for. The target is the first of `parts`, if there is one. Raises
    SettingError, with the arithmetic, where they do not fit into the bytes that are `free` on their devices."""
    first = parts[0]
    named = first.pool // first.token
    most = named or min(MOST, chosen.scheduler.max_running * first.longest)
    for device in dict.fromkeys(part.device for part in parts):
        here = [part for part in parts if part.device == device]
        each = sum(part.token for part in here if not part.pool)
        share = 1.0 if named else chosen.target.memory
        room = int(share * free[device]) - _fixed(here)
        if room < each * (named or min(LEAST, most)):
            raise SettingError(_refusal(here, free[device], share, named or min(LEAST, most)))
        if each and not named:
            most = min(most, room // each)
    return most


def _fixed(here: Sequence[Part]) -> int:
    return _processes(here) + sum(part.weights + part.pool for part in here)


def _processes(here: Sequence[Part]) -> int:
    return SERVER + DRAFTER * (len(here) - 1) if here[0].device == CPU else 0


def _refusal(here: Sequence[Part], free: int, share: float, pool: int) -> str:
    """Return the arithmetic of parts that do not fit on their device with a pool of so many tokens."""
    kv = sum(part.pool or pool * part.token for part in here)
    weights = ", ".join(f"{part.name} {_gib(part.weights)}" for part in here)
    taken = f" of which target.memory takes {share:g}" if share < 1 else ""
    more = "raise target.memory, " if share < 1 else ""
    return (
        f"not enough memory on {here[0].device}: weights take {_gib(sum(part.weights for part in here))} GiB "
        f"({weights}), processes {_gib(_processes(here))} and KV of {pool} tokens {_gib(kv)}; {_gib(free)} GiB are "
        f"free,{taken or ' all of which may be taken'}: {more}serve a smaller model or fewer drafters, or less KV"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def sized(chosen: Profile, part: Part) -> Profile:
    """Return the same deployment with sizes of KV pools by one part, where no launcher has seen to that."""
    free = available() if part.device == CPU else gpu(part.device).free
    return with_tokens(chosen, tokens([part], {part.device: free}, chosen))


def of_target(folder: str | Path, settings: TargetSettings, gpu: Gpu, product: tuple[int, ...] = NO_PRODUCT) -> Part:
    """Return the memory of the target in a folder. `product` is the shape of the one that makes states for a head of
    the taps: what is kept of them lies with each token's KV."""
    folder, device = Path(folder), _device(settings.device, gpu)
    check_bytes(folder, replace(settings, device="cuda" if device == GPU else "cpu"))
    if device == GPU:
        dtype = dtypes.served(settings.dtype, folder, "bfloat16" if gpu.bfloat16 else "float32", halves=True)
    else:
        dtype = dtypes.on_cpu(settings.dtype, folder)
    part = _part("target", folder, device, dtype, native=settings.runtime != TORCH, product=product)
    return replace(part, pool=settings.kv_blocks * settings.block_size * part.token or settings.kv_memory_mb << 20)


def of_drafter(name: str, folder: Path, settings: DrafterSettings, gpu: Gpu, target: Path | None = None) -> Part:
    """Return what a drafter in a folder takes; with a `target`, the folder of that one's model, it is a head."""
    device, dtype = _device(settings.device, gpu), settings.dtype
    if dtype == "auto":
        multiplied = gpu.bfloat16 if device == GPU else cpu.multiplies_bfloat16()
        dtype = SMALL if device == CPU else "bfloat16" if multiplied else "float32"
    if target is None:
        part = _part(name, folder, device, dtype)
    elif device == CPU and dtype in KINDS:
        part = _native(name, heads.read(folder, target).of, dtype)
    else:
        of, number = heads.read(folder, target).of, _BYTES[dtype]
        weights = number * sum(math.prod(tensor.shape) for tensor in of.weights.values())
        part = Part(name, device, weights, 2 * of.kv_heads * of.head_dim * number, of.max_positions)
    return replace(part, pool=settings.kv_blocks * BLOCK * part.token or settings.kv_memory_mb << 20)


def with_own_head(part: Part, head: Part) -> Part:
    """Return what a target takes that drafts with its head itself."""
    return replace(part, weights=part.weights + head.weights + HEAD_BLOCKS * BLOCK * head.token)


def blocks(part: Part, block_size: int, section: str) -> int:
    """Return how many blocks a pool has whose size the profile's `section` says."""
    size = part.token * block_size
    if part.pool < size:
        raise SettingError(f"{section}.kv_memory_mb: one KV block of {part.name} takes {size} bytes; give it more")
    return part.pool // size


def _device(asked: str, gpu: Gpu) -> str:
    return GPU if asked == GPU or (asked == "auto" and gpu.free) else CPU


def _part(
    name: str, folder: Path, device: str, dtype: str, *, native: bool = True, product: tuple[int, ...] = NO_PRODUCT
) -> Part:
    width, taps = product
    try:
        of = architecture.read(folder)
        if native and device == CPU and dtype in KINDS:
            return _native(name, of, dtype, taps)
        layers, kv_heads, dim, longest = of.layers, of.kv_heads, of.head_dim, of.max_positions
    except UnsupportedModel:
        layers, kv_heads, dim, longest = _asked(_SHAPE, str(folder))
    if dtype == SMALL:
        dtype = "bfloat16" if cpu.multiplies_bfloat16() else "float32"
    number = _BYTES[dtype]
    held = stored.tensors(refusals.weight_files(folder)).values()
    weights = number * (sum(math.prod(tensor.shape) for tensor in held) + width * taps)
    layers += heads.planes(width, kv_heads, dim)
    return Part(name, device, weights, 2 * layers * kv_heads * dim * number, longest)


def _native(name: str, of: architecture.Architecture, dtype: str, taps: int = 0) -> Part:
    token = sizes.block_bytes(of, dtype, taps) // BLOCK
    return Part(name, CPU, sizes.weight_bytes(of, dtype), token, of.max_positions)


def _asked(code: str, *words: str) -> Any:
    """Return what a program that may import PyTorch, which takes seconds and much memory, says as JSON."""
    words = (interpreter.python(), "-c", code, *words)
    done = subprocess.run(words, env=interpreter.environment(), check=False, capture_output=True, text=True)
    if done.returncode:
        raise SettingError(done.stderr.strip().rpartition("\n")[2])
    return json.loads(done.stdout)
