"""Samples of the target at temperature 1; knows prompts as text, no domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.progress import track
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["Sample", "sample"]


@dataclass(frozen=True)
class Sample:
    """A prompt's tokens and the target's continuation, which ends with end-of-text or at the limit."""

    prompt: list[int]
    continuation: list[int]


def sample(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    tokens: int,
    seed: int,
    rows: int = 256,
) -> list[Sample]:
    """One continuation per prompt; prompts of similar length share a batch, and the answer keeps their order."""
    served = LlamaForCausalLM(model.config).to(model.device, torch.bfloat16).eval()
    served.load_state_dict(model.state_dict())
    generator = torch.Generator(model.device).manual_seed(seed)
    encoded: list[list[int]] = [tokenizer(prompt).input_ids for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    samples: dict[int, Sample] = {}
    for start in track(range(0, len(order), rows), "target's samples", transient=True):
        chosen = order[start : start + rows]
        continuations = continue_batch(served, [encoded[index] for index in chosen], tokens, generator)
        for index, continuation in zip(chosen, continuations):
            samples[index] = Sample(encoded[index], continuation)
    return [samples[index] for index in range(len(encoded))]


@torch.no_grad()
def continue_batch(
    model: LlamaForCausalLM, prompts: Sequence[list[int]], tokens: int, generator: torch.Generator
) -> list[list[int]]:
    """Continuations of prompts that are padded on the left, where the mask hides the padding."""
    end_of_text = model.config.eos_token_id
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    ids = torch.tensor([[end_of_text] * pad + prompt for pad, prompt in zip(padding, prompts)], device=model.device)
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
        ended |= drawn[-1] == end_of_text
    rows: list[list[int]] = torch.stack(drawn, 1).tolist()
    return [row[: row.index(end_of_text) + 1] if end_of_text in row else row for row in rows]
