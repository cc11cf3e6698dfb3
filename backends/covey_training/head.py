"""`python -m covey_training head`: an EAGLE-3 head for any plain target, trained on the target's own samples.

The head reads the target's hidden states, computed as it learns: three of them a token are too many to keep. It learns
with test-time training: at each step of a draft but the first it reads what it put out at the step before, as it will
when it drafts. Prompts are the bundled ones or a file's, a tenth of them held out; or, with `--data`, those of the
corpora, beside passages of the corpora themselves, and all bundled ones are held out.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaForCausalLM, PreTrainedModel

from covey import prompts
from covey.contracts.errors import SettingError
from covey.models import loading
from covey.models.identity import of_model
from covey.text import vocabulary
from covey_training import architecture, chains, corpora, distil, head_model, own, teacher, texts
from covey_training.head_model import Head
from covey_training.numbers import fastest, mixed
from covey_training.optimiser import Budget
from covey_training.sampling import Sample, ends_of

HEAD = "draft_head"
STEPS = 4  # of a draft, in training
FADE = 0.8  # from the weight of a step to the next one's
PASSAGES = 0.25  # tokens of the corpora for each token of the samples
SETTINGS = distil.DistilSettings()

Report = dict[str, dict[str, chains.Measured]]  # by group of prompts, then by drafter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    texts.add_arguments(parser)
    parser.add_argument("--data", type=Path, help="folder of the corpora that the bundled target learned")
    parser.add_argument("--draft-vocab", type=int, metavar="N", help="draft the N most frequent tokens alone")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="FOLDER", help="a drafter to compare with"
    )
    parser.add_argument("--json", type=Path, help="where to write the measurements")


def run(options: argparse.Namespace) -> None:
    folder, report = make(options)
    console = Console()
    show(report, console)
    if options.json is not None:
        plain = {group: {name: asdict(one) for name, one in row.items()} for group, row in report.items()}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    console.print(f"make serve PROFILE={shlex.quote(str(folder / 'profile.toml'))}", soft_wrap=True, highlight=False)


def make(options: argparse.Namespace) -> tuple[Path, Report]:
    """Draw, learn, measure and write; the same command again goes on where it was stopped."""
    device = torch.device(options.device)
    # As it is served: so are its states.
    target = texts.open_target(options.target, device, fastest(device), options.window)
    head_model.check(target.folder, target.model)
    beside = _beside(target.folder, options.beside, device)
    tokens, held_out = _lessons(target, options)
    torch.manual_seed(options.seed)
    kept = most_frequent(tokens, int(target.model.config.vocab_size), options.draft_vocab)
    head = head_model.begin(target.model, kept).to(device)
    windows = tokens[: len(tokens) // target.window * target.window].view(-1, target.window)
    head.scale_to(head.read(target.model, windows[: options.rows].to(device))[0])
    loss = lessons(head, target.model, windows, options)
    budget = Budget(steps=options.steps, minutes=options.minutes)
    distil.fit({HEAD: head}, loss, budget, own.work(options.out) / "head.pt", device=device, settings=SETTINGS)
    report: Report = {
        group: {
            HEAD: chains.of_head(target.model, head, samples),
            **chains.of_others(target.model, beside, samples, own.looked_up(samples)),
        }
        for group, samples in held_out.items()
    }
    folder = options.out.resolve()
    lengths = {
        name: statistics.fmean(row[name].accepted_length for row in report.values()) for name in (HEAD, "n-gram")
    }
    said = (
        f"The head beside this file was trained for this target. Of a chain of {chains.DEPTH} held-out tokens, at\n"
        f"# temperature 1, the target accepts {lengths[HEAD]:.2f}, and of what n-grams draft {lengths['n-gram']:.2f}."
    )
    with architecture.staged(folder) as staging:
        head_model.save(head, staging)
        own.describe(staging, target.folder, HEAD, folder, said, is_head=True)
    return folder, report


def lessons(
    head: Head, target: PreTrainedModel, windows: torch.Tensor, options: argparse.Namespace
) -> Callable[[str, int, torch.Tensor], distil.Loss]:
    """Return the function that gives a step's loss: the target reads the step's windows, and the head with it."""
    loss_of = torch.compile(unrolled_loss, dynamic=False) if options.compile else unrolled_loss

    def loss(_: str, step: int, variation_weight: torch.Tensor) -> distil.Loss:
        chosen = windows[distil.rows_of_step(step, options.rows, len(windows), options.seed)].to(target.device)
        return loss_of(head, *head.read(target, chosen), variation_weight)

    return loss


def unrolled_loss(
    head: Head, taps: torch.Tensor, embeddings: torch.Tensor, expected: torch.Tensor, variation_weight: torch.Tensor
) -> distil.Loss:
    """Return the distance at every step of the drafts that begin at every index, a later step's weighing less."""
    with mixed(taps.device):
        drafted = list(head.unroll(taps, embeddings, STEPS))
    if head.kept is not None:
        expected = expected[..., head.kept]
    parts = [distil.distance(logits, expected[:, step:], variation_weight) for step, logits in enumerate(drafted)]
    weights = [FADE**step for step in range(STEPS)]
    loss = torch.stack([weight * loss for weight, (loss, _) in zip(weights, parts)]).sum() / sum(weights)
    return loss, torch.stack([variation for _, variation in parts]).mean()


def _beside(target: Path, named: Sequence[Path], device: torch.device) -> dict[str, LlamaForCausalLM]:
    """Return the drafters to compare with: those that are named, and the general one of the target's repository."""
    general = target.resolve().parent.parent / architecture.GENERAL / "1"
    unnamed = [general] if general.is_dir() and not vocabulary.misfit(general, target) else []
    found = {}
    for folder in (*unnamed, *named):
        if misfit := vocabulary.misfit(folder, target):
            raise SettingError(f"--beside: {folder} has {misfit}: it cannot draft for this target")
        config = loading.read_config(folder)
        name = folder.parent.name if folder.name.isdigit() else folder.name
        found[name] = loading.load_module(folder, config, fastest(device), device, texts.attention_of(config))
    return found


def _lessons(target: texts.Target, options: argparse.Namespace) -> tuple[torch.Tensor, dict[str, list[Sample]]]:
    """Return the tokens to learn from, and by group of prompts what the target wrote to be measured by; kept for a run
    that goes on."""
    groups = texts.read_prompts(options.prompts)

    def make() -> dict[str, Any]:
        if options.data is None:
            measured = {name: group[:: texts.HELD_OUT] for name, group in groups.items()}
            teaching = [text for group in groups.values() for at, text in enumerate(group) if at % texts.HELD_OUT]
            asked = [teaching[at % len(teaching)] for at in range(options.samples)]
        else:
            measured, documents = groups, {name: corpora.split(name, options.data)[0] for name in prompts.DOMAINS}
            order, domains = random.Random(options.seed), [*prompts.DOMAINS]
            picked = [domains[at % len(domains)] for at in range(options.samples)]
            asked = [teacher.cut_prompt(name, order.choice(documents[name]), order) for name in picked]
        tokens, samples = target.write(asked, [text for group in measured.values() for text in group], options)
        if options.data is not None:
            tokens = torch.cat([tokens, _passages(target, documents, int(PASSAGES * len(tokens)), order)])
        drawn = iter(samples)
        held_out = {
            name: [(one.prompt, one.continuation) for one in islice(drawn, len(group))]
            for name, group in measured.items()
        }
        return {"tokens": tokens, "held_out": held_out}

    settings = [options.samples, options.tokens, options.window, options.seed, str(options.data), options.draft_vocab]
    found = texts.kept(own.work(options.out) / "texts.pt", of_model(target.folder, [groups, settings]), make)
    held_out = {name: [Sample(*pair) for pair in pairs] for name, pairs in found["held_out"].items()}
    return found["tokens"], held_out


def _passages(
    target: texts.Target, documents: Mapping[str, Sequence[str]], tokens: int, order: random.Random
) -> torch.Tensor:
    """Return whole documents of all domains in equal shares, some `tokens` in all."""
    ends = ends_of(target.model.config)[:1]
    read: list[int] = []
    for place, name in enumerate(documents, 1):
        for document in order.sample(documents[name], len(documents[name])):
            if len(read) >= tokens * place // len(documents):
                break
            read += [*target.tokenizer(document, verbose=False).input_ids, *ends]
    return torch.tensor(read)


def most_frequent(tokens: torch.Tensor, vocabulary_size: int, draft_vocab: int | None) -> torch.Tensor | None:
    """Return the ids of the draft vocabulary in order, None where it is the target's."""
    if draft_vocab is None or draft_vocab == vocabulary_size:
        return None
    if not 0 < draft_vocab < vocabulary_size:
        raise SettingError(f"--draft-vocab: got {draft_vocab}, allowed: 1 to {vocabulary_size}")
    counts = tokens.bincount(minlength=vocabulary_size)
    return counts.argsort(descending=True, stable=True)[:draft_vocab].sort().values


def show(report: Report, console: Console) -> None:
    """Show by group of prompts and drafter the acceptance at each place of a chain, and how much of a chain is kept;
    greedy: how often the head's likeliest token is the target's."""
    table = Table("prompts", "drafter", *map(str, range(1, chains.DEPTH + 1)), "kept", title="Acceptance, 1 - TV")
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
