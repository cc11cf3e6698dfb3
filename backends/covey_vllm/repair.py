"""Repairs two bugs of vLLM 0.32's CPU build, if they are there.

Before drafts are verified, the requests' temperature, top_k and top_p are expanded to one value per draft. Without
Triton that build writes them into a copy, and continues with uninitialised memory. So with any proposer, sampled texts
have another distribution than without drafts; greedy ones do not. The second bug ends the engine: vLLM takes the
maximum of an empty array if requests have a top_k, none has a top_p, and nothing was drafted. A vLLM without these bugs
is left alone.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch

from covey.contracts.errors import SettingError

log = logging.getLogger("covey.vllm")

MODULE = "vllm.v1.sample.rejection_sampler"
KERNEL = f"{MODULE}.expand_kernel"
TOP_K, TOP_K_CALL = "vllm.v1.sample.ops.topk_topp_sampler", "apply_top_k_only"


def repair() -> None:
    """Make vLLM verify drafts with the requests' own settings. Raises SettingError if that fails, because drafts would
    then change the sampled texts. Does nothing without vLLM."""
    try:
        sampler = importlib.import_module(MODULE)
        dispatcher = importlib.import_module("vllm.triton_utils.dispatcher")
        top_k = importlib.import_module(TOP_K)
    except ImportError:
        return
    if torch.cuda.is_available():
        return
    if not _takes_none(getattr(top_k, TOP_K_CALL)):
        setattr(top_k, TOP_K_CALL, of_some(getattr(top_k, TOP_K_CALL)))
        log.warning("%s.%s fails if nothing is drafted; replaced it by one that checks first", TOP_K, TOP_K_CALL)
    if not _right(sampler):
        dispatcher.register_kernels({KERNEL: expand})
        if not _right(sampler):
            raise SettingError(f"{KERNEL} gives drafts other sampling settings than their requests', even replaced")
        log.warning("%s gave drafts other sampling settings than their requests'; replaced it", KERNEL)


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    _most: int = 0,
) -> None:
    """Write each request's value once for each of its drafts. `ends` are cumulative counts of drafts. One value is
    replaced.

    values .5 .7, ends 2 3 give .5 .5 .7
    """
    kept = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(kept.repeat_interleave(torch.diff(ends, prepend=ends.new_zeros(1)).long()))


def of_some(apply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that calls `apply` only if there are rows of logits."""

    def applied(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return apply(logits, k) if len(logits) else logits

    return applied


def _takes_none(apply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> bool:
    try:
        return len(apply(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int32))) == 0
    except RuntimeError:
        return False


def _right(sampler: Any) -> bool:
    values, ends = torch.tensor([0.5, 0.0, 0.75]), torch.tensor([2, 3, 6], dtype=torch.int32)
    found = sampler.expand_batch_to_tokens(values, ends, 6, replace_from=0, replace_to=1)
    return bool(torch.equal(found, torch.tensor([0.5, 0.5, 1.0, 0.75, 0.75, 0.75])))
