"""Measures how often a drafter's draw is its target's, on texts that the target makes.

Texts are random ids that the target continues at temperature 1. Both models read them whole, and both draw at every
place of the continuation by Covey's own coupled rule: the same noise of (seed, position, token) for either. Each place
is drawn several times, with other seeds, because a draw costs less than a place.
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
ROWS = 8  # texts that are read at once: their logits are the largest thing in memory


@dataclass(frozen=True)
class Agreement:
    """Shares of places where drafter and target say the same, and how unsure the target is there."""

    coupled: float  # at temperature 1, one noise
    greedy: float
    entropy: float  # bits per token, of the target at temperature 1


@dataclass(frozen=True)
class Panel:
    """The texts that are measured on: `rows` of them, `tokens` long without their prompts, `draws` of each token."""

    seed: int
    rows: int = 64
    tokens: int = 48
    draws: int = 4


@torch.inference_mode()
def measure(target: PreTrainedModel, drafter: PreTrainedModel, panel: Panel) -> Agreement:
    """Return the agreement on the panel's texts, which depend on the target's weights too."""
    prompts = random_ids(target, panel.rows, panel.seed)
    texts = continued(target, prompts, panel.tokens, 1.0, panel.seed)
    table = SettingsTable(panel.draws)
    streams = [table.add(Sampling(temperature=1.0, seed=panel.seed + n), PROMPT) for n in range(panel.draws)]
    same, greedy, unsure = [], [], []
    for start in range(0, panel.rows, ROWS):
        ids = texts[start : start + ROWS]
        expected, proposed = (told(model, ids) for model in (target, drafter))
        # every place has its own noise, and none that made the texts
        places = texts.shape[1] + panel.tokens * start + np.arange(len(expected))
        for stream in streams:
            slots = np.full(len(places), stream, np.int32)
            drawn = [draw(logits, table, slots, places).tokens for logits in (expected, proposed)]
            same.append((drawn[0] == drawn[1]).mean())
        greedy.append(expected.argmax(1).eq(proposed.argmax(1)).double().mean().item())
        unsure.append(entropies(expected).double().mean().item())
    return Agreement(float(np.mean(same)), float(np.mean(greedy)), float(np.mean(unsure)))


def random_ids(model: PreTrainedModel, rows: int, seed: int) -> Tensor:
    """Return prompts of no special token, the same on every device."""
    ids = np.random.default_rng(seed).integers(SPECIAL, model.config.vocab_size, (rows, PROMPT))
    return torch.from_numpy(ids).to(model.device)


def continued(model: PreTrainedModel, prompts: Tensor, tokens: int, temperature: float, seed: int) -> Tensor:
    """Return the prompts with what the model adds, each row's noise from a seed of its own."""
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
    """Return the logits at every place that the model continued, one row each."""
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, PROMPT - 1 : -1]
    return logits.flatten(0, 1).float()


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row in bits."""
    logs = logits.float().log_softmax(-1)
    bits: Tensor = -(logs.exp() * logs).sum(-1) / np.log(2.0)
    return bits
