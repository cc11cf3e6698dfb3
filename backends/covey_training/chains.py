"""Measures how long chains of drafts last along samples of the target, and shows the results.

A chain begins at every sampled token that has `DEPTH` tokens of the sample ahead. The acceptance at each position of a
chain is 1 - TV(target, drafter). With this probability the target accepts the drafter's token there, if the tokens
before it are the sample's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaForCausalLM, PreTrainedModel

from covey.contracts.errors import SettingError
from covey_training.head_model import Head
from covey_training.numbers import mixed
from covey_training.optimiser import Clock

DEPTH = 5
NO_LIMIT = Clock(None)
ROWS, NUMBERS = 8, 1 << 25  # samples that are read together at most, and numbers of their logits
NGRAMS = "n-gram"


@dataclass(frozen=True)
class Sample:
    """A prompt's tokens and the target's continuation, which ends with an end token or at the limit."""

    prompt: list[int]
    continuation: list[int]


def ends_of(config: Any) -> tuple[int, ...]:
    """Return the tokens that end a text, from a model's configuration: one, several or none."""
    ends = config.eos_token_id
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)


@dataclass(frozen=True)
class Measured:
    """Means over chains: acceptance at each position, and the expected number of accepted tokens. For a head,
    `agreement` is how often its likeliest token is the target's."""

    acceptance: list[float]
    accepted_length: float
    agreement: list[float] | None = None


Report = dict[str, dict[str, Measured]]  # by group of prompts, then by drafter


def acceptances(target_logits: torch.Tensor, drafter_logits: torch.Tensor) -> torch.Tensor:
    """Return 1 - TV at every position of (..., vocabulary) logits."""
    p, q = target_logits.float().softmax(-1), drafter_logits.float().softmax(-1)
    return torch.minimum(p, q).sum(-1)


def padded(
    target: PreTrainedModel, samples: Sequence[Sample], clock: Clock
) -> Iterator[tuple[Sequence[Sample], torch.Tensor]]:
    """Yield a few samples at a time with their tokens, (rows, width), padded on the right, which changes no result.
    Stop when the clock's minutes are over, but not before the first."""
    device, longest = target.device, max((len(one.prompt) + len(one.continuation) for one in samples), default=1)
    rows = max(1, min(ROWS, NUMBERS // (longest * int(target.config.vocab_size))))
    for start in range(0, len(samples), rows):
        if start and clock.left(1.0) == 0:
            return
        chosen = samples[start : start + rows]
        texts = [[*one.prompt, *one.continuation] for one in chosen]
        width = max(map(len, texts))
        yield chosen, torch.tensor([text + [0] * (width - len(text)) for text in texts], device=device)


@torch.no_grad()
def sample_acceptances(
    target: PreTrainedModel, drafters: Mapping[str, LlamaForCausalLM], samples: Sequence[Sample], clock: Clock
) -> dict[str, list[list[float]]]:
    """Return, per drafter and sample, the acceptance at each sampled position."""
    rates: dict[str, list[list[float]]] = {name: [] for name in drafters}
    for chosen, ids in padded(target, samples, clock):
        expected = target(input_ids=ids, use_cache=False).logits
        for name, drafter in drafters.items():
            likely = acceptances(expected, drafter(input_ids=ids, use_cache=False).logits)
            for row, one in enumerate(chosen):
                first = len(one.prompt) - 1
                rates[name].append(likely[row, first : first + len(one.continuation)].tolist())
    return rates


def measured(kept: torch.Tensor, agreed: torch.Tensor | None = None) -> Measured:
    """Return the measures of (chains, DEPTH) acceptances. Raises SettingError if there are none."""
    if not len(kept):
        raise SettingError(f"no held-out sample has {DEPTH} tokens: ask for more --tokens, or other prompts")
    length = float(kept.cumprod(1).sum(1).mean())
    return Measured(kept.mean(0).tolist(), length, None if agreed is None else agreed.mean(0).tolist())


def of_others(
    target: PreTrainedModel,
    drafters: Mapping[str, LlamaForCausalLM],
    samples: Sequence[Sample],
    looked_up: Sequence[Sequence[bool]],
    clock: Clock = NO_LIMIT,
) -> dict[str, Measured]:
    """Return the measures of drafters that read only tokens, and of n-grams. `looked_up` says whether n-grams were
    right about each token. For both, the depth of a token in its chain makes no difference."""
    rates = {**sample_acceptances(target, drafters, samples, clock), NGRAMS: looked_up}
    return {
        name: measured(torch.cat([torch.tensor(row).double().unfold(0, DEPTH, 1) for row in rows if len(row) >= DEPTH]))
        for name, rows in rates.items()
    }


@torch.no_grad()
def of_head(target: PreTrainedModel, head: Head, samples: Sequence[Sample], clock: Clock = NO_LIMIT) -> Measured:
    """Return the measures of a head. A chain with its first token at position p begins at index p - 2. There the head
    reads the token at p - 1, which the target drew last."""
    kept, agreed = [], []
    for chosen, tokens in padded(target, samples, clock):
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


def show(report: Report, console: Console) -> None:
    """Show, by group of prompts and drafter, the acceptance at each position of a chain and how many tokens are
    accepted. Rows named "greedy" show how often the head's likeliest token is the target's."""
    table = Table("prompts", "drafter", *map(str, range(1, DEPTH + 1)), "kept", title="Acceptance, 1 - TV")
    for group, row in report.items():
        for name, one in row.items():
            table.add_row(group, name, *(f"{rate:.3f}" for rate in one.acceptance), f"{one.accepted_length:.2f}")
            if one.agreement is not None:
                table.add_row(group, f"{name}, greedy", *(f"{share:.3f}" for share in one.agreement), "")
    for name in next(iter(report.values())):
        rates = [statistics.fmean(place) for place in zip(*(row[name].acceptance for row in report.values()))]
        length = statistics.fmean(row[name].accepted_length for row in report.values())
        table.add_row("mean of all", name, *(f"{rate:.3f}" for rate in rates), f"{length:.2f}")
    console.print(table)


def compared(report: Report, name: str) -> str:
    """Return a sentence that compares the drafter with n-grams over all prompts."""
    own, ngrams = (statistics.fmean(row[each].accepted_length for row in report.values()) for each in (name, NGRAMS))
    return (
        f"Of {DEPTH} drafted tokens, at temperature 1, the target accepts {own:.2f} from this drafter and {ngrams:.2f} "
        "from n-grams, on held-out texts."
    )
