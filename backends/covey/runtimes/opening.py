"""The model in a folder on one device, run as fast as that can: behind one face, whatever computes it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

from covey import gpu
from covey.models.loading import choose_device
from covey.models.model import PagedModel

if TYPE_CHECKING:
    from covey.gpu import DeviceModel

Model: TypeAlias = "PagedModel | DeviceModel"
M = TypeVar("M")
RECORDED_ROWS = 64  # passes of up to so many rows are recorded at load; others when they come again
log = logging.getLogger(__name__)


def open_model(
    folder: str | Path,
    *,
    dtype: str,
    device: str,
    blocks: int,
    block_size: int,
    numerics: str,
    max_pass_tokens: int,
    tokens_per_row: int = 1,
    most_blocks: int = 0,
    vocab_size: int = 0,
) -> Model:
    """Load a model: on a GPU by kernels of our own, which cost less where numerics need not be invariant; elsewhere,
    and for families that the kernels do not compute, by PyTorch's. Most passes will have up to `tokens_per_row`.
    With `most_blocks` the pool can become so large; with `vocab_size`, outputs from that id on are cut off."""
    chosen = choose_device(device)
    on_gpu = chosen.type == "cuda"

    def built(kind: Callable[..., M]) -> M:
        return kind(
            folder,
            dtype=dtype,
            device=device,
            blocks=blocks,
            block_size=block_size,
            numerics="fast" if on_gpu and numerics == "auto" else numerics,
            max_pass_tokens=max_pass_tokens,
            most_blocks=most_blocks,
            vocab_size=vocab_size,
        )

    if on_gpu:
        torch.cuda.set_device(chosen)  # kernels run on a thread's own device
        model = _by_kernels(built, chosen, folder)
        if model is not None:
            model.record(RECORDED_ROWS, tokens_per_row)
            return model
    return built(PagedModel)


def _by_kernels(
    built: Callable[[type[DeviceModel]], DeviceModel], device: torch.device, folder: str | Path
) -> DeviceModel | None:
    """Return the model by our kernels; None, and the reason logged, where they do not run it."""
    found = gpu.why_not(device) or gpu.open_model(built)
    if not isinstance(found, str):
        return found
    log.warning("%s: PyTorch's own kernels run this model, slower than ours would: %s", folder, found)
    gc.collect()  # both pools would not fit
    torch.cuda.empty_cache()
    return None
