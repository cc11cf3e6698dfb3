"""Opens the model in a folder with the fastest runtime that its device has, behind one interface."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

from covey import gpu
from covey.models import head_modules
from covey.models.loading import choose_device
from covey.models.model import PagedModel

if TYPE_CHECKING:
    from covey.gpu import DeviceModel
    from covey.models.heads import Head, Taps

Model: TypeAlias = "PagedModel | DeviceModel"
M = TypeVar("M")
RECORDED_ROWS = 64  # passes of up to this many rows are recorded at load; others when they repeat
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
    taps: Taps | None = None,
    head: Head | None = None,
) -> Model:
    """Return a loaded model. On a GPU, Covey's own kernels compute it, which are fastest with fast numerics. PyTorch's
    compute it elsewhere, and families that ours do not support. Most passes will have up to `tokens_per_row` tokens per
    row. The pool can grow to `most_blocks`. With `vocab_size`, outputs from that id on are cut off. With `taps`, passes
    keep states for a head; with `head`, the folder holds that."""
    chosen = choose_device(device)
    on_gpu = chosen.type == "cuda"

    def built(kind: Callable[..., M]) -> M:
        # kernels take modules apart, so each kind reads its own
        source = folder if head is None else head_modules.read(head, Path(folder), dtype=dtype, device=device)
        more = {} if taps is None else {"taps": taps}
        return kind(
            source,
            dtype=dtype,
            device=device,
            blocks=blocks,
            block_size=block_size,
            numerics="fast" if on_gpu and numerics == "auto" else numerics,
            max_pass_tokens=max_pass_tokens,
            most_blocks=most_blocks,
            vocab_size=vocab_size,
            **more,
        )

    if on_gpu:
        torch.cuda.set_device(chosen)  # kernels run on the thread's current device
        model = _by_kernels(built, chosen, folder, of_head=head is not None)
        if model is not None:
            model.record(RECORDED_ROWS, tokens_per_row)
            return model
    return built(PagedModel if head is None else head_modules.PagedHead)


def _by_kernels(
    built: Callable[[type[DeviceModel]], DeviceModel], device: torch.device, folder: str | Path, *, of_head: bool
) -> DeviceModel | None:
    """Return the model on Covey's kernels. If they cannot run it, log the reason and return None."""
    found = gpu.why_not(device) or gpu.open_model(built, of_head=of_head)
    if not isinstance(found, str):
        return found
    log.warning("Model %s runs on PyTorch's kernels, which are slower than Covey's: %s", folder, found)
    gc.collect()  # both pools would not fit
    torch.cuda.empty_cache()
    return None
