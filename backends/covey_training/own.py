"""`python -m covey_training drafter`: a small drafter for any target, distilled from the target's own samples.

Needs nothing but the target's folder: prompts are the bundled ones, or lines of a file. Every tenth prompt is held out:
the target's continuations of those say how often the drafter will be right, beside what looking up earlier text would.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedModel

from covey.contracts.profile import GENERAL, DrafterSettings
from covey.drafters.ngram import NgramLookup
from covey.models import loading
from covey.models.identity import of_model
from covey.server.preflight import TOKENIZERS
from covey_training import architecture, distil, evaluate, texts
from covey_training.optimiser import Budget
from covey_training.sampling import Sample, ends_of
from covey_training.teacher import Lessons, hidden_states


@dataclass(frozen=True, slots=True)
class Made:
    """A drafter's folder, its profile, and the share of held-out tokens that it and n-grams were right about."""

    folder: Path
    profile: Path
    acceptance: float
    accepted_length: float
    ngram: float
    tokens: int


def run(options: argparse.Namespace) -> None:
    made = make(options)
    console = Console()
    console.print(
        f"Of {made.tokens} held-out tokens, at temperature 1, the target accepts {made.acceptance:.0%} "
        f"({made.accepted_length:.2f} of a draft of {evaluate.DEPTH}), and of what n-grams draft {made.ngram:.0%}."
    )
    console.print(f"make serve PROFILE={shlex.quote(str(made.profile))}", soft_wrap=True, highlight=False)


def make(options: argparse.Namespace) -> Made:
    """Draw, learn, measure and write; the same command again goes on where it was stopped."""
    target = texts.open_target(options.target, torch.device(options.device), torch.float32, options.window)
    lessons, held_out = _lessons(target, options)
    torch.manual_seed(options.seed)
    student = _student(target.model).to(options.device)
    distil.train(
        {GENERAL: student},
        {GENERAL: lessons},
        target.model,
        Budget(steps=options.steps, minutes=options.minutes),
        work(options.out) / "drafter.pt",
        seed=options.seed,
        settings=replace(distil.DistilSettings(), rows=options.rows, compiled=options.compile),
    )
    student.eval()
    rates = evaluate.sample_acceptances(target.model, {GENERAL: student}, held_out)[GENERAL]
    lengths = [length for row in rates for length in evaluate.accepted_lengths(row)]
    made = Made(
        folder=options.out.resolve(),
        profile=options.out.resolve() / "profile.toml",
        acceptance=statistics.fmean(rate for row in rates for rate in row),
        accepted_length=statistics.fmean(lengths) if lengths else 0.0,
        ngram=statistics.fmean(hit for row in looked_up(held_out) for hit in row),
        tokens=sum(map(len, rates)),
    )
    _save(student, target.folder, made)
    return made


def _lessons(target: texts.Target, options: argparse.Namespace) -> tuple[Lessons, list[Sample]]:
    """Return what the target wrote with its hidden states, and what it wrote to be measured by; kept for a run that
    goes on."""
    asked = [text for group in texts.read_prompts(options.prompts).values() for text in group]
    teaching = [text for place, text in enumerate(asked) if place % texts.HELD_OUT]

    def make() -> dict[str, Any]:
        starts = [teaching[place % len(teaching)] for place in range(options.samples)]
        tokens, held_out = target.write(starts, asked[:: texts.HELD_OUT], options)
        windows = tokens[: len(tokens) // target.window * target.window].view(-1, target.window)
        hidden = hidden_states(target.model, windows, 8)
        return {"tokens": windows, "hidden": hidden, "held_out": [(one.prompt, one.continuation) for one in held_out]}

    made_with = of_model(target.folder, [asked, options.samples, options.tokens, options.window, options.seed])
    found = texts.kept(work(options.out) / "lessons.pt", made_with, make)
    return Lessons(found["tokens"], found["hidden"]), [Sample(*pair) for pair in found["held_out"]]


def _student(target: PreTrainedModel) -> LlamaForCausalLM:
    ends = ends_of(target.config)
    student = architecture.drafter(int(target.config.vocab_size), ends[0] if ends else 0)
    student.config.max_position_embeddings = loading.find_max_positions(target.config)
    student.config.eos_token_id = list(ends) or None
    distil.start_from_target(student, target)
    return student


def looked_up(samples: Sequence[Sample]) -> list[list[bool]]:
    """Return, for each token of the samples, whether n-grams of the text before it say it."""
    longest = DrafterSettings().ngram_max
    found = []
    for one in samples:
        lookup = NgramLookup(longest)
        lookup.extend(one.prompt)
        hits = []
        for token in one.continuation:
            hits.append([child.token for child in lookup.children(lookup.place(), 1)] == [token])
            lookup.extend([token])
        found.append(hits)
    return found


def work(out: Path) -> Path:
    """Return the folder of what a run needs to go on, beside the drafter."""
    return out.resolve().parent / f".{out.resolve().name}.run"


def _save(student: LlamaForCausalLM, target: Path, made: Made) -> None:
    with architecture.staged(made.folder) as staging:
        narrow = LlamaForCausalLM(student.config).to(torch.bfloat16)
        narrow.load_state_dict(student.state_dict())
        narrow.generation_config = GenerationConfig(eos_token_id=student.config.eos_token_id)
        narrow.save_pretrained(staging)
        said = (
            f"The drafter beside this file was distilled for this target. Of {made.tokens} held-out tokens, at\n"
            f"# temperature 1, the target accepts {made.acceptance:.3f}, and of what n-grams draft {made.ngram:.3f}."
        )
        describe(staging, target, GENERAL, made.folder, said)


def describe(staging: Path, target: Path, name: str, folder: Path, said: str, *, is_head: bool = False) -> None:
    """Put beside a drafter's weights, which are to be in `folder`, the target's tokenizer and a profile that serves
    both."""
    head = f"head = {json.dumps(name)}\n" if is_head else ""
    for file in (*TOKENIZERS, "special_tokens_map.json", "merges.txt", "added_tokens.json"):
        if (target / file).is_file():
            shutil.copyfile(target / file, staging / file)
    drafters = [name, "draft_ngram", "draft_suffix"]
    models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", *drafters]
    profile = f"""\
# {said} Who moves a folder edits its path.
description = "a target and the drafter made for it"
models = {json.dumps(models)}

[target]
folder = {json.dumps(str(target.resolve()))}
{head}
[speculation]
drafters = {json.dumps(drafters)}

[drafter]
folders = [{json.dumps(f"{name}:{folder}")}]
"""
    (staging / "profile.toml").write_text(profile, encoding="utf-8")
