"""Samples of the target at temperature 1; knows prompts as text, no domains."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from covey_client.progress import Steps

__all__ = ["Sample", "ends_of", "sample"]


@dataclass(frozen=True)
class Sample:
    """A prompt's tokens and the target's continuation, which ends with end-of-text or at the limit."""

    prompt: list[int]
    continuation: list[int]


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    tokens: int,
    seed: int,
    rows: int = 256,
    longest: int | None = None,
) -> list[Sample]:
    """One continuation per prompt, or of its last `longest` tokens; prompts of similar length share a batch, and the
    answer keeps their order."""
    served = copy.deepcopy(model).to(torch.bfloat16).eval()
    generator = torch.Generator(model.device).manual_seed(seed)
    encoded: list[list[int]] = [tokenizer(prompt).input_ids[-(longest or 0) :] for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    samples: dict[int, Sample] = {}
    with Steps() as bar:
        for start in bar.track(range(0, len(order), rows), description="target's samples"):
            chosen = order[start : start + rows]
            continuations = continue_batch(served, [encoded[index] for index in chosen], tokens, generator)
            for index, continuation in zip(chosen, continuations):
                samples[index] = Sample(encoded[index], continuation)
    return [samples[index] for index in range(len(encoded))]


@torch.no_grad()
def continue_batch(
    model: PreTrainedModel, prompts: Sequence[list[int]], tokens: int, generator: torch.Generator
) -> list[list[int]]:
    """Continuations of prompts that are padded on the left, where the mask hides the padding."""
    ends = ends_of(model.config)
    ending = torch.tensor(ends, device=model.device)
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, prompts)], device=model.device)
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=model.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    drawn: list[torch.Tensor] = []
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=model.device)
    while len(drawn) < tokens and not bool(ended.all()):
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        ids = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
        positions = positions[:, -1:] + 1
        drawn.append(ids[:, 0])
        ended |= torch.isin(drawn[-1], ending)
    rows: list[list[int]] = torch.stack(drawn, 1).tolist()
    return [row[: next((at for at, token in enumerate(row) if token in ends), tokens) + 1] for row in rows]


def ends_of(config: Any) -> tuple[int, ...]:
    """The tokens that end a text, by a model's configuration: one, a list of them or none."""
    ends = config.eos_token_id
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
