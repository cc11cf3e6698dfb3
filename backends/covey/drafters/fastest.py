"""The fastest stepper for a model, after it was seen to give what the model gives."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from covey.drafters.fused_stepper import FusedStepper
from covey.drafters.paged_stepper import PagedStepper
from covey.drafters.stepper import Call, Stepper
from covey.drafters.weights import read_llama
from covey.models.model import PagedModel
from covey.models.opening import Model

log = logging.getLogger("covey.drafter")

TRUSTED = 0.1  # the share of their size by which logits may differ through rounding


def make_stepper(model: Model, folder: Path, depth: int = 0) -> Stepper:
    """The fastest there is for the model in `folder`; uses the model's first slots."""
    if not isinstance(model, PagedModel):
        from covey.drafters.device_stepper import DeviceStepper  # kernels: a CPU does without

        stepper = DeviceStepper(model)
        stepper.record(depth)
        return stepper
    paged = PagedStepper(model)
    if model.torch_device.type != "cpu":
        return paged
    try:
        fused = FusedStepper(model, read_llama(folder, model))
    except KeyError as error:
        log.info("%s: each drafted token is a pass over the paged model: it is no plain Llama (%s)", folder, error)
        return paged
    expected, fused_logits = _trial(paged, model), _trial(fused, model)
    if (fused_logits - expected).norm() <= TRUSTED * expected.norm():
        return fused
    log.warning("%s: each drafted token is a pass over the paged model: the short step differs from it", folder)
    return paged


@torch.inference_mode()
def _trial(stepper: Stepper, model: Model) -> torch.Tensor:
    """Logits of a few tokens that follow one another."""
    pending = min(6, model.blocks * model.block_size - 1, model.max_positions - 1)
    at = np.arange(pending + 1)[None]
    tables = np.arange(-(-(pending + 1) // model.block_size), dtype=np.int32)[None]
    stepper.begin(Call(tables, np.zeros(1, np.int32), at, at), 1)
    tokens = torch.arange(pending + 1) * 7919 % model.vocab_size
    logits = [stepper.catch_up(tokens[:-1], 1), stepper.step(tokens[-1:], 1)]
    stepper.finish()
    return torch.cat(logits)
