"""Measures how often a drafter's draw equals its target's, on texts that the target writes.

A text is random ids that the target continues at temperature 1. Both models read it whole. Both draw at every position
of the continuation by Covey's coupled rule: with the same noise for (seed, position, token). Each position is drawn
several times, with other seeds, because a draw is cheaper than a position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from covey.contracts.types import Sampling
from covey.sampling.drawing import draw
from covey.sampling.settings import SettingsTable
from covey_training.aligned.shapes import SPECIAL

PROMPT = 16
ROWS = 8  # texts that are read together; their logits take the most memory


@dataclass(frozen=True)
class Agreement:
    """Shares of positions where drafter and target agree, and the target's entropy there."""

    coupled: float  # at temperature 1, with the same noise
    greedy: float
    entropy: float  # of the target at temperature 1, in bits per token


@dataclass(frozen=True)
class Panel:
    """The texts to measure on: `rows` texts of `tokens` tokens after their prompts, with `draws` draws per token."""

    seed: int
    rows: int = 64
    tokens: int = 48
    draws: int = 4


@torch.inference_mode()
def measure(target: PreTrainedModel, drafter: PreTrainedModel, panel: Panel) -> Agreement:
    """Return the agreement on the panel's texts, which depend on the target's weights as well."""
    prompts = random_ids(target, panel.rows, panel.seed)
    texts = continued(target, prompts, panel.tokens, 1.0, panel.seed)
    table = SettingsTable(panel.draws)
    streams = [table.add(Sampling(temperature=1.0, seed=panel.seed + n), PROMPT) for n in range(panel.draws)]
    same, greedy, unsure = [], [], []
    for start in range(0, panel.rows, ROWS):
        ids = texts[start : start + ROWS]
        expected, proposed = (told(model, ids) for model in (target, drafter))
        # each position has its own noise, never used to write the texts
        places = texts.shape[1] + panel.tokens * start + np.arange(len(expected))
        for stream in streams:
            slots = np.full(len(places), stream, np.int32)
            drawn = [draw(logits, table, slots, places).tokens for logits in (expected, proposed)]
            same.append((drawn[0] == drawn[1]).mean())
        greedy.append(expected.argmax(1).eq(proposed.argmax(1)).double().mean().item())
        unsure.append(entropies(expected).double().mean().item())
    return Agreement(float(np.mean(same)), float(np.mean(greedy)), float(np.mean(unsure)))


def random_ids(model: PreTrainedModel, rows: int, seed: int) -> Tensor:
    """Return prompts without special tokens, the same on every device."""
    ids = np.random.default_rng(seed).integers(SPECIAL, model.config.vocab_size, (rows, PROMPT))
    return torch.from_numpy(ids).to(model.device)


def continued(model: PreTrainedModel, prompts: Tensor, tokens: int, temperature: float, seed: int) -> Tensor:
    """Return the prompts with the model's continuations; each row's noise has its own seed."""
    rows, width = prompts.shape
    table = SettingsTable(rows)
    settings = [Sampling(temperature=temperature, seed=seed + n) for n in range(rows)]
    slots = np.array([table.add(one, width) for one in settings], np.int32)
    cache, ids, text = DynamicCache(config=model.config), prompts, [prompts]
    for position in range(width, width + tokens):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        drawn = draw(logits, table, slots, np.full(rows, position, np.int32)).tokens
        ids = torch.from_numpy(drawn.astype(np.int64)).to(model.device)[:, None]
        text.append(ids)
    return torch.cat(text, 1)


def told(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the logits at every continued position, one row each."""
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, PROMPT - 1 : -1]
    return logits.flatten(0, 1).float()


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row in bits."""
    logs = logits.float().log_softmax(-1)
    bits: Tensor = -(logs.exp() * logs).sum(-1) / np.log(2.0)
    return bits
