"""The lessons of drafters: windows of text with the target's last hidden states, computed once.

The target's logits are one product of those states with its embedding, so a window costs its forward only once however
often a drafter reads it. Part of the text is the target's own samples, because that is what a drafter has to predict.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from covey_client.progress import LINE_SECONDS, Steps
from covey_training.edits import AFTER
from covey_training.numbers import fastest, mixed
from covey_training.sampling import sample
from covey_training.streams import Stream

SENTENCE = re.compile(r"(?<=[.!?]) ")


@dataclass(frozen=True)
class LessonSettings:
    """The amounts of text of each kind that a domain's lessons hold."""

    corpus_tokens: int = 98_304
    samples: int = 3072
    sample_tokens: int = 96
    length: int = 512
    rows: int = 8


@dataclass(frozen=True)
class Lessons:
    """The windows of one domain: (n, length) tokens and (n, length, width) hidden states of the target."""

    tokens: torch.Tensor
    hidden: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def join(parts: Sequence[Lessons]) -> Lessons:
        return Lessons(torch.cat([part.tokens for part in parts]), torch.cat([part.hidden for part in parts]))


def cut_prompt(domain: str, document: str, order: random.Random) -> str:
    """Return the start of a document, ending where a prompt of its domain ends."""
    return PROMPT_CUTS[domain](document, order)


def cut_code(document: str, order: random.Random) -> str:
    lines = document.splitlines()[: order.randint(3, 12)]
    return "\n".join(lines)[: order.randint(100, 300)].rstrip()


def cut_math(document: str, _: random.Random) -> str:
    return document[: document.index("\nAnswer:") + len("\nAnswer:")]


def cut_translation(document: str, order: random.Random) -> str:
    pairs = document.split("\nEnglish: ")
    kept = "\nEnglish: ".join(pairs[: order.randint(1, min(3, len(pairs)))])
    return kept[: kept.rindex("German:") + len("German:")]


def cut_summarisation(document: str, order: random.Random) -> str:
    """Return a few sentences of the abstract: whole ones are long, and a short prompt is a prompt too."""
    abstract = document[: document.index("\nSummary:")]
    return " ".join(SENTENCE.split(abstract)[: order.randint(2, 5)])[:500].rstrip() + "\nSummary:"


def cut_chat(document: str, order: random.Random) -> str:
    turns = document.split("\nAssistant:")
    kept = turns[: order.randint(1, min(3, max(1, len(turns) - 1)))]
    return "\nAssistant:".join(kept) + "\nAssistant:"


def cut_edits(document: str, _: random.Random) -> str:
    return document[: document.index(AFTER) + len(AFTER)]


PROMPT_CUTS: dict[str, Callable[[str, random.Random], str]] = {
    "code": cut_code,
    "math": cut_math,
    "translation": cut_translation,
    "summarisation": cut_summarisation,
    "chat": cut_chat,
    "edits": cut_edits,
}


def prepare(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    domain: str,
    documents: Sequence[str],
    stream: Stream,
    *,
    seed: int,
    settings: LessonSettings = LessonSettings(),
) -> Lessons:
    """Return windows of the domain's documents and the target's own continuations, with the target's hidden states."""
    order = random.Random(seed)
    starts = [cut_prompt(domain, order.choice(documents), order) for _ in range(settings.samples)]
    own = sample(model, tokenizer, starts, tokens=settings.sample_tokens, seed=seed)
    end_of_text = model.config.eos_token_id
    texts = [np.array([*one.prompt, *one.continuation, end_of_text], np.uint16) for one in own]
    tokens = np.concatenate([stream.read(0, settings.corpus_tokens), *(text.astype(np.int64) for text in texts)])
    windows = torch.from_numpy(tokens[: len(tokens) // settings.length * settings.length]).view(-1, settings.length)
    rows = settings.rows if model.device.type == "cpu" else 16 * settings.rows
    return Lessons(windows, hidden_states(model, windows, rows))


@torch.no_grad()
def hidden_states(model: PreTrainedModel, windows: torch.Tensor, rows: int) -> torch.Tensor:
    device = next(model.parameters()).device
    model.eval()
    parts = []
    with Steps(apart=LINE_SECONDS) as bar:
        for start in bar.track(range(0, len(windows), rows), description="target's states"):
            batch = windows[start : start + rows]
            with mixed(device):
                states = model.base_model(input_ids=batch.to(device), use_cache=False).last_hidden_state
            parts.append(states.to(fastest(device)).cpu())
    return torch.cat(parts)
