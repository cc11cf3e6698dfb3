"""Samples of the target at temperature 1; knows prompts as text, no domains."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from covey_client.progress import Steps
from covey_training.numbers import fastest


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
    rows: int | None = None,
    longest: int | None = None,
) -> list[Sample]:
    """Return one continuation per prompt, or of its last `longest` tokens, in the prompts' order; prompts of similar
    length share a batch."""
    served = copy.deepcopy(model).eval()
    for parameter in served.parameters():  # rotary frequencies, which are no parameters, stay as exact as they are
        parameter.data = parameter.data.to(fastest(model.device))
    encoded: list[list[int]] = [tokenizer(prompt).input_ids[-(longest or 0) :] for prompt in prompts]
    rows = rows or (256 if model.device.type == "cpu" else 2048)
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    samples: dict[int, Sample] = {}
    with Steps() as bar, torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in bar.track(range(0, len(order), rows), description="target's samples"):
            chosen = order[start : start + rows]
            continuations = continue_batch(served, [encoded[index] for index in chosen], tokens)
            for index, continuation in zip(chosen, continuations):
                samples[index] = Sample(encoded[index], continuation)
    return [samples[index] for index in range(len(encoded))]


def continue_batch(model: PreTrainedModel, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """Return continuations of prompts that are padded on the left, where the mask hides the padding, drawn by PyTorch's
    own generator."""
    ends = ends_of(model.config)
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, prompts)], device=model.device)
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=model.device)
    # The folder's own defaults, as a top_p, would make another distribution.
    model.generation_config = GenerationConfig(eos_token_id=list(ends) or None, pad_token_id=0)
    drawn = model.generate(ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=tokens)[:, width:]
    return [row[: next((at for at, token in enumerate(row) if token in ends), tokens) + 1] for row in drawn.tolist()]


def ends_of(config: Any) -> tuple[int, ...]:
    """Return the tokens that end a text, by a model's configuration: one, a list of them or none."""
    ends = config.eos_token_id
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
