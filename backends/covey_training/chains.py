"""Measures how far chains of drafts hold along held-out samples.

A chain begins at every sampled token from which the sample has `DEPTH` tokens left. Acceptance at each of its places is
1 - TV(target, drafter), the probability that the target keeps the drafter's token there, given that the tokens before
it are the sample's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from covey.contracts.errors import SettingError
from covey_training.evaluate import acceptances, padded, sample_acceptances
from covey_training.head_model import Head
from covey_training.numbers import mixed
from covey_training.sampling import Sample

DEPTH = 5


@dataclass(frozen=True)
class Measured:
    """Means over chains: acceptance at each place, the expected number of tokens kept of a chain, and of a head's, how
    often its likeliest token is the target's."""

    acceptance: list[float]
    accepted_length: float
    agreement: list[float] | None = None


def measured(kept: torch.Tensor, agreed: torch.Tensor | None = None) -> Measured:
    """Return the measures of (chains, DEPTH) acceptances. Raises SettingError where there are none."""
    if not len(kept):
        raise SettingError(f"no held-out sample has {DEPTH} tokens: ask for more --tokens, or other prompts")
    length = float(kept.cumprod(1).sum(1).mean())
    return Measured(kept.mean(0).tolist(), length, None if agreed is None else agreed.mean(0).tolist())


def of_others(
    target: PreTrainedModel,
    drafters: Mapping[str, LlamaForCausalLM],
    samples: Sequence[Sample],
    looked_up: Sequence[Sequence[bool]],
) -> dict[str, Measured]:
    """Return the measures of drafters that read tokens alone, and of n-grams, which were right or wrong about each
    token: to these it makes no difference how deep in a chain a token stands."""
    rates = {**sample_acceptances(target, drafters, samples), "n-gram": looked_up}
    return {
        name: measured(torch.cat([torch.tensor(row).double().unfold(0, DEPTH, 1) for row in rows if len(row) >= DEPTH]))
        for name, rows in rates.items()
    }


@torch.no_grad()
def of_head(target: PreTrainedModel, head: Head, samples: Sequence[Sample]) -> Measured:
    """The chain whose first token is at position p begins at index p - 2: the token at p - 1 is the one that the target
    drew last."""
    kept, agreed = [], []
    for chosen, tokens in padded(samples, target.device):
        places = tokens.shape[1] - DEPTH
        taps, embeddings, expected = head.read(target, tokens)
        rates, same = [], []
        with mixed(tokens.device):
            for step, logits in enumerate(head.unroll(taps, embeddings, DEPTH)):
                drafted, wanted = head.widen(logits), expected[:, step:]
                rates.append(acceptances(wanted, drafted)[:, :places])
                same.append((wanted.argmax(-1) == drafted.argmax(-1))[:, :places])
        for row, one in enumerate(chosen):
            begun = slice(max(0, len(one.prompt) - 2), max(0, len(one.prompt) + len(one.continuation) - DEPTH - 1))
            kept.append(torch.stack([step[row, begun] for step in rates], -1).double())
            agreed.append(torch.stack([step[row, begun] for step in same], -1).double())
    return measured(torch.cat(kept), torch.cat(agreed))
