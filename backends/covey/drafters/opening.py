"""Opens a neural drafter's model on the runtime that serves it, with the stepper that suits it.

On a CPU the native runtime serves the plain families, in a process without PyTorch. PyTorch would need more memory than
such a drafter. It runs all other families, and all models on a GPU.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey import gpu
from covey.contracts.errors import UnsupportedModel
from covey.contracts.profile import BLOCK, DrafterSettings
from covey.models.identity import files_of, identity
from covey.process import cpu
from covey.runtimes import budget
from covey.runtimes.choice import has_gpu

if TYPE_CHECKING:
    from covey.models.heads import Head
    from covey.models.paged_stepper import PagedStepper
    from covey.models.stepper import Stepper
    from covey.runtimes.opening import Model
    from covey.runtimes.resizing import AnyModel

log = logging.getLogger("covey.drafter")

SECOND, EVERY = 8 << 20, 32 << 20  # bytes of weights from which a second thread pays, and one for each processor
PASS_TOKENS = 512  # in one pass; more rows are drafted for in several groups


@dataclass(frozen=True, slots=True)
class Opened:
    model: AnyModel
    stepper: Stepper
    identity: str  # the pair of model and machine for which its timings hold
    state_width: int = 0  # of a head


def open_drafter(folder: Path, settings: DrafterSettings, depth: int, vocab_size: int = 0) -> Opened:
    """Return the model in a folder; few calls will ask for more than `depth`. Outputs that a target of `vocab_size`
    tokens lacks are cut off."""
    if _natively_served(settings):
        try:
            return _natively(folder, settings, vocab_size)
        except UnsupportedModel as error:
            log.info("%s: using PyTorch: %s", folder, error)
    return _by_torch(folder, settings, depth, vocab_size)


def open_head(folder: Path, target: Path, settings: DrafterSettings, depth: int) -> Opened:
    """Return the head in one folder for the target in another; few calls will ask for more than `depth`."""
    from covey.models import heads

    head = heads.read(folder, target)
    if _natively_served(settings):
        from covey.models.native.head import HeadModel
        from covey.models.paged_stepper import NativeHeadStepper

        try:
            model = HeadModel(head, **_sizes(folder, settings, target))
        except UnsupportedModel as error:
            log.info("%s: using PyTorch: %s", folder, error)
        else:
            return Opened(model, NativeHeadStepper(model), _identity(folder, settings), model.width)
    return _by_torch(folder, settings, depth, head=head, target=target)


def _natively_served(settings: DrafterSettings) -> bool:
    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not has_gpu())
    return on_cpu and settings.dtype in ("auto", "bfloat16", "float32")


def _natively(folder: Path, settings: DrafterSettings, vocab_size: int) -> Opened:
    from covey.models.native import architecture
    from covey.models.native.model import NativeModel
    from covey.models.paged_stepper import NativeStepper

    of = architecture.read(folder)
    of = replace(of, vocab_size=min(of.vocab_size, vocab_size or of.vocab_size))
    model = NativeModel(of, numerics="fast", **_sizes(folder, settings))
    return Opened(model, NativeStepper(model), _identity(folder, settings))


def _sizes(folder: Path, settings: DrafterSettings, target: Path | None = None) -> dict[str, Any]:
    """Return a native drafter's type, KV blocks, threads, and tokens per pass."""
    from covey.models.native import SMALL

    dtype = SMALL if settings.dtype == "auto" else settings.dtype  # no drafter has proposed worse with it
    return {
        "dtype": dtype,
        "blocks": _blocks(folder, settings, target),
        "threads": threads_for(folder),
        "max_pass_tokens": PASS_TOKENS,
        "most_blocks": 0,
    }


def _blocks(folder: Path, settings: DrafterSettings, target: Path | None = None) -> int:
    part = budget.of_drafter(str(folder), folder, settings, budget.gpu(settings.device), target)
    return budget.blocks(part, BLOCK, "drafter")


def _timed(settings: DrafterSettings) -> DrafterSettings:
    """Return the settings that influence timings."""
    return replace(settings, folders=(), kv_memory_mb=0, kv_blocks=0)


def _identity(folder: Path, settings: DrafterSettings) -> str:
    from covey.models.native.model import code

    return identity([_timed(settings), code()], files_of(folder))


def threads_for(folder: Path) -> int:
    """Return a drafter's number of threads: the target computes nothing while it waits for drafts."""
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if weights >= EVERY:
        return cpu.cores()
    return min(2, cpu.cores()) if weights >= SECOND else 1


def _by_torch(
    folder: Path,
    settings: DrafterSettings,
    depth: int,
    vocab_size: int = 0,
    *,
    head: Head | None = None,
    target: Path | None = None,
) -> Opened:
    from covey.models.identity import of_model
    from covey.runtimes.opening import open_model

    model = open_model(
        folder,
        dtype=settings.dtype,
        device=settings.device,
        blocks=_blocks(folder, settings, target),
        block_size=BLOCK,
        numerics="fast",
        max_pass_tokens=PASS_TOKENS,
        vocab_size=vocab_size,
        head=head,
    )
    width = 0 if head is None else head.of.width
    return Opened(model, torch_stepper(model, depth), of_model(folder, _timed(settings)), width)


def torch_stepper(model: Model, depth: int = 0) -> PagedStepper:
    """Return the stepper of a model that PyTorch runs, ready for chains of up to `depth` on a GPU."""
    from covey.models.head_modules import PagedHead
    from covey.models.model import PagedModel
    from covey.models.paged_stepper import HeadStepper, PagedStepper

    if isinstance(model, PagedHead):
        return HeadStepper(model)
    return PagedStepper(model) if isinstance(model, PagedModel) else gpu.stepper_of(model, depth)
