"""`python -m covey_training drafter`: a small drafter for any target, distilled from the target's own samples.

Needs only the target's folder (`covey_training.texts`). The target's held-out texts then show how often the drafter is
right, in comparison with n-gram lookup.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedModel

from covey.contracts.profile import GENERAL, DrafterSettings
from covey.drafters.ngram import NgramLookup
from covey.launcher.preflight import TOKENIZERS
from covey.models import loading
from covey_training import architecture, chains, distil, texts
from covey_training.chains import Sample, ends_of
from covey_training.optimiser import Clock
from covey_training.teacher import Lessons, hidden_states

# Shares of the minutes until the target has written, its states are computed, and the drafter is trained.
WRITTEN, READ, LEARNT = 0.4, 0.65, 0.92
MEASURED = 32  # held-out samples that a run with --minutes is measured on


@dataclass(frozen=True, slots=True)
class Made:
    """A drafter's folder, its profile, and how long its drafts and those of n-grams last on held-out texts."""

    folder: Path
    profile: Path
    report: chains.Report


def run(options: argparse.Namespace) -> None:
    made = make(options)
    console = Console()
    chains.show(made.report, console)
    console.print(f"make serve PROFILE={shlex.quote(str(made.profile))}", soft_wrap=True, highlight=False)


def make(options: argparse.Namespace) -> Made:
    """Sample, train, measure and write. The same command resumes a stopped run."""
    clock, path = Clock(options.minutes), work(options.out) / "drafter.pt"
    target = texts.open_target(options.target, torch.device(options.device), options.window)
    seconds = 0.0 if path.is_file() else clock.left(WRITTEN)
    windows, held_out = texts.lessons(target, options, work(options.out) / "texts.jsonl", seconds=seconds)
    model = target.load(torch.float32)
    hidden = hidden_states(model, windows, 8, clock.left(READ))
    lessons = Lessons(windows[: len(hidden)], hidden)
    torch.manual_seed(options.seed)
    student = _student(model).to(options.device)
    distil.train(
        student,
        lessons,
        model,
        clock.budget(options.steps, LEARNT),
        path,
        seed=options.seed,
        settings=replace(distil.DistilSettings(), rows=options.rows),
    )
    student.eval()
    samples = [one for group in held_out.values() for one in group][: None if options.minutes is None else MEASURED]
    found = chains.of_others(model, {GENERAL: student}, samples, looked_up(samples), clock)
    folder = options.out.resolve()
    made = Made(folder, folder / "profile.toml", {"held out": found})
    _save(student, target.folder, made)
    return made


def _student(target: PreTrainedModel) -> LlamaForCausalLM:
    ends = ends_of(target.config)
    student = architecture.drafter(int(target.config.vocab_size), ends[0] if ends else 0)
    student.config.max_position_embeddings = loading.find_max_positions(target.config)
    student.config.eos_token_id = list(ends) or None
    distil.start_from_target(student, target)
    return student


def looked_up(samples: Sequence[Sample]) -> list[list[bool]]:
    """Return, for each token of the samples, whether n-grams of the text before it predict it."""
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
    """Return the folder with the state for resuming a run, next to the drafter's folder."""
    return out.resolve().parent / f".{out.resolve().name}.run"


def _save(student: LlamaForCausalLM, target: Path, made: Made) -> None:
    with architecture.staged(made.folder) as staging:
        narrow = LlamaForCausalLM(student.config).to(torch.bfloat16)
        narrow.load_state_dict(student.state_dict())
        narrow.generation_config = GenerationConfig(eos_token_id=student.config.eos_token_id)
        narrow.save_pretrained(staging)
        describe(staging, target, GENERAL, made.folder, chains.compared(made.report, GENERAL))


def describe(staging: Path, target: Path, name: str, folder: Path, said: str, *, is_head: bool = False) -> None:
    """Write the target's tokenizer and a profile that serves target and drafter into `staging`, next to the drafter's
    weights. `folder` is where the weights will be."""
    head = f"head = {json.dumps(name)}\n" if is_head else ""
    for file in (*TOKENIZERS, "special_tokens_map.json", "merges.txt", "added_tokens.json"):
        if (target / file).is_file():
            shutil.copyfile(target / file, staging / file)
    drafters = [name, "draft_ngram", "draft_suffix"]
    models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", *drafters]
    profile = f"""\
# The drafter next to this file was made for this target. If you move a folder, edit its path.
# {said}
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
