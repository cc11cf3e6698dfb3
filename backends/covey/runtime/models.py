"""The model in a folder on one device, run as fast as that can: behind one face, whatever computes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from covey.errors import UnsupportedModel
from covey.runtime.kernels.ready import why_not
from covey.runtime.loading import choose_device
from covey.runtime.model import PagedModel

if TYPE_CHECKING:
    from covey.runtime.device.model import DeviceModel

Model: TypeAlias = "PagedModel | DeviceModel"
RECORDED_ROWS = 64  # of passes that are recorded at load; others are when they come again
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
) -> Model:
    """On a GPU by kernels of our own, which cost less where numerics need not be invariant; elsewhere, and for families
    that the kernels do not compute, by PyTorch's. Most passes will have up to `tokens_per_row`."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # kernels run on a thread's own device
        numerics = "fast" if numerics == "auto" else numerics
        reason = why_not(chosen)
        if reason:
            log.warning("%s: PyTorch's own kernels run this model, slower than ours would: %s", folder, reason)
        else:
            model = _by_kernels(folder, dtype, device, blocks, block_size, numerics, max_pass_tokens)
            if model is not None:
                model.record(RECORDED_ROWS, tokens_per_row)
                return model
    return PagedModel(
        folder,
        dtype=dtype,
        device=device,
        blocks=blocks,
        block_size=block_size,
        numerics=numerics,
        max_pass_tokens=max_pass_tokens,
    )


def _by_kernels(
    folder: str | Path, dtype: str, device: str, blocks: int, block_size: int, numerics: str, max_pass_tokens: int
) -> DeviceModel | None:
    """None, and the reason logged, where they do not run this model."""
    from triton.errors import TritonError

    from covey.runtime.device.model import DeviceModel

    try:
        return DeviceModel(
            folder,
            dtype=dtype,
            device=device,
            blocks=blocks,
            block_size=block_size,
            numerics=numerics,
            max_pass_tokens=max_pass_tokens,
        )
    except (UnsupportedModel, TritonError) as error:
        log.warning("%s: PyTorch's own kernels run this model, slower than ours would", error)
        return None
