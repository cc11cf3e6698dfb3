"""Measures target and drafters: acceptance and accepted length on the target's own samples, cross-entropy, step time.

Acceptance at a position is 1 - TV(target, drafter), the probability that the speculative rule keeps the drafter's
token there. The accepted length of a round that starts at a position is sum over k = 1..depth of the product of the
first k acceptances along the target's sample; rounds that a sample is too short for are left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from covey_client.progress import LINE_SECONDS, Steps
from covey_training.edits import AFTER
from covey_training.numbers import fastest
from covey_training.sampling import Sample, sample

DEPTH = 4
ROWS = 8
STEPS_OF_TURN = 6

Table = dict[str, dict[str, float]]


@dataclass
class Report:
    """Everything that `evaluate` writes; the inner key of both tables is the drafter."""

    acceptance: Table = field(default_factory=dict)
    accepted_length: Table = field(default_factory=dict)
    cross_entropy: dict[str, float] = field(default_factory=dict)
    step_ratio: dict[str, float] = field(default_factory=dict)
    copied: float | None = None
    samples: dict[str, list[str]] = field(default_factory=dict)


def acceptances(target_logits: torch.Tensor, drafter_logits: torch.Tensor) -> torch.Tensor:
    """Return 1 - TV at every position of (..., vocabulary) logits."""
    p, q = target_logits.float().softmax(-1), drafter_logits.float().softmax(-1)
    return torch.minimum(p, q).sum(-1)


def accepted_lengths(rates: Sequence[float], depth: int = DEPTH) -> list[float]:
    """Return the expected accepted tokens of the rounds that start at each position with `depth` positions left."""
    if len(rates) < depth:
        return []
    rounds = torch.tensor(rates, dtype=torch.float64).unfold(0, depth, 1)
    lengths: list[float] = rounds.cumprod(1).sum(1).tolist()
    return lengths


def padded(samples: Sequence[Sample], device: torch.device) -> Iterator[tuple[Sequence[Sample], torch.Tensor]]:
    """Yield the samples a few at a time with their tokens, (rows, width); padding on the right changes nothing."""
    for start in range(0, len(samples), ROWS):
        chosen = samples[start : start + ROWS]
        texts = [[*one.prompt, *one.continuation] for one in chosen]
        width = max(map(len, texts))
        yield chosen, torch.tensor([text + [0] * (width - len(text)) for text in texts], device=device)


def compare(
    target: LlamaForCausalLM,
    drafters: Mapping[str, LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerFast,
    prompts: Mapping[str, Sequence[str]],
    *,
    tokens: int,
    seed: int,
) -> Report:
    """Return acceptance and accepted length of every drafter on the target's samples from each domain's prompts."""
    report = Report()
    for domain, texts in prompts.items():
        samples = sample(target, tokenizer, texts, tokens=tokens, seed=seed)
        rates = sample_acceptances(target, drafters, samples)
        report.samples[domain] = [str(tokenizer.decode(one.continuation)) for one in samples[:3]]
        report.acceptance[domain] = {
            name: statistics.fmean(rate for row in rows for rate in row) for name, rows in rates.items()
        }
        report.accepted_length[domain] = {
            name: statistics.fmean(length for row in rows for length in accepted_lengths(row))
            for name, rows in rates.items()
        }
    return report


@torch.no_grad()
def copied(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]) -> float:
    """Return the share of the tokens of unchanged lines that greedy answers have in their place, by the longest common
    parts of the answer and of the text after the edit."""
    right = total = 0
    with Steps(apart=LINE_SECONDS) as bar:
        for document in bar.track(documents, description="edits answered"):
            begun = document.index(AFTER) + len(AFTER)
            before, after = document[:begun].split("\n"), document[begun:].split("\n")[1:]
            lines = [tokenizer("\n" + line).input_ids for line in after]
            unchanged = [after[at] in before for at, line in enumerate(lines) for _ in line]
            expected = [token for line in lines for token in line]
            ids = torch.tensor([tokenizer(document[:begun]).input_ids], device=model.device)
            room = min(len(expected) + 8, model.config.max_position_embeddings - ids.shape[1])
            answer = model.generate(ids, do_sample=False, max_new_tokens=room)[0, ids.shape[1] :].tolist()
            for part in SequenceMatcher(None, expected, answer, autojunk=False).get_matching_blocks():
                right += sum(unchanged[part.a : part.a + part.size])
            total += sum(unchanged)
    return right / total


@torch.no_grad()
def sample_acceptances(
    target: PreTrainedModel, drafters: Mapping[str, LlamaForCausalLM], samples: Sequence[Sample]
) -> dict[str, list[list[float]]]:
    """Return, per drafter and sample, the acceptance at each sampled position."""
    rates: dict[str, list[list[float]]] = {name: [] for name in drafters}
    for chosen, ids in padded(samples, target.device):
        expected = target(input_ids=ids, use_cache=False).logits
        for name, drafter in drafters.items():
            likely = acceptances(expected, drafter(input_ids=ids, use_cache=False).logits)
            for row, one in enumerate(chosen):
                first = len(one.prompt) - 1
                rates[name].append(likely[row, first : first + len(one.continuation)].tolist())
    return rates


@torch.no_grad()
def step_ratio(
    target: LlamaForCausalLM, drafters: Mapping[str, LlamaForCausalLM], *, context: int = 64, rounds: int = 8
) -> dict[str, float]:
    """Return each drafter's one-token step over the target's, at batch 1 with a cache, on the CPU.

    The models take turns, so that whatever else the machine does slows all of them alike; the first step of a turn
    finds another model's weights in the processor's caches, and does not count.
    """
    models = {"": target, **drafters}
    copies = {
        name: LlamaForCausalLM(model.config).to(fastest(torch.device("cpu"))).eval() for name, model in models.items()
    }
    prompt = torch.arange(context).remainder(target.config.vocab_size)[None]
    caches = {name: model(input_ids=prompt, use_cache=True).past_key_values for name, model in copies.items()}
    seconds: dict[str, list[float]] = {name: [] for name in copies}
    token = prompt[:, :1]
    with Steps(apart=LINE_SECONDS) as bar:
        turns = [turn for _ in range(rounds) for turn in copies.items()]
        for name, model in bar.track(turns, description="steps timed"):
            for step in range(STEPS_OF_TURN):
                begun = time.perf_counter()
                model(input_ids=token, past_key_values=caches[name], use_cache=True)
                if step > 0:
                    seconds[name].append(time.perf_counter() - begun)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    return {name: median[name] / median[""] for name in drafters}
