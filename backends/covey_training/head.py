"""`python -m covey_training head`: an EAGLE-3 head for any plain target, trained on the target's own samples.

The head reads the target's hidden states, computed while it trains (`states.py`). It learns by test-time training: in
later steps of a draft it reads its own output of the step before, as when it drafts. Most of the skill is
the same for all steps and is cheapest to learn from the first, so drafts are short at first. A head that is trained
further (`--start`) has that skill, so its drafts are long from the beginning.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedModel

from covey.contracts.errors import SettingError
from covey.process.footprint import available
from covey_training import architecture, chains, distil, head_model, own, texts
from covey_training.head_model import Head
from covey_training.numbers import fastest, mixed
from covey_training.optimiser import Clock
from covey_training.states import States

HEAD = "draft_head"
STEPS, SHORTER = 4, ((0.5, 1), (0.75, 2))  # steps of a training draft; (share of the budget, steps until then)
FADE = 0.8  # weight of a step relative to the one before
SETTINGS = distil.DistilSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    texts.add_arguments(parser)
    parser.add_argument("--draft-vocab", type=int, metavar="N", help="draft only the N most frequent tokens")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="a head to train further, such as a published one")
    parser.add_argument("--bytes", action="store_true", help="write int8 matrices: half the file, but only for Covey")


def run(options: argparse.Namespace) -> None:
    folder, report = make(options)
    console = Console()
    chains.show(report, console)
    console.print(f"make serve PROFILE={shlex.quote(str(folder / 'profile.toml'))}", soft_wrap=True, highlight=False)


def make(options: argparse.Namespace) -> tuple[Path, chains.Report]:
    """Sample, train, measure and write. The same command resumes a stopped run."""
    device = torch.device(options.device)
    clock, path = Clock(options.minutes), own.work(options.out) / "head.pt"
    if options.start is not None and options.draft_vocab is not None:
        raise SettingError("--draft-vocab: a head that is trained further keeps its own; leave it out")
    target = texts.open_target(options.target, device, options.window)
    head_model.check(target.folder, target.shape())
    if options.start is not None:
        head_model.continued(target.shape(), options.start, target.folder)  # before minutes of writing: it may not fit
    seconds, file = 0.0 if path.is_file() else clock.left(own.WRITTEN), own.work(options.out) / "texts.jsonl"
    settings = [options.draft_vocab, *([] if options.start is None else [str(options.start.resolve())])]
    windows, held_out = texts.lessons(target, options, file, settings, seconds)
    model = target.load(fastest(device))  # in the dtype that it is served in, so that its states are the same
    if options.minutes is not None:
        held_out = {group: samples[: own.MEASURED // len(held_out)] for group, samples in held_out.items()}
    torch.manual_seed(options.seed)
    if options.start is not None:
        head = head_model.continued(model, options.start, target.folder).to(device)
    else:
        kept = most_frequent(windows.flatten(), int(model.config.vocab_size), options.draft_vocab)
        head = head_model.begin(model, kept).to(device)
    head.scale_to(head.read(model, windows[: options.rows].to(device))[0], learnt=options.start is not None)
    loss = lessons(head, model, windows, options)
    budget = clock.budget(options.steps, own.LEARNT)
    distil.fit(head, loss, budget, path, device=device, settings=SETTINGS)
    if options.bytes:
        head_model.round_to_bytes(head)
    Console(stderr=True).print("measuring the head on texts that were held out", highlight=False)
    report: chains.Report = {
        group: {
            HEAD: chains.of_head(model, head, samples, clock),
            **chains.of_others(model, {}, samples, own.looked_up(samples), clock),
        }
        for group, samples in held_out.items()
    }
    folder = options.out.resolve()
    with architecture.staged(folder) as staging:
        head_model.save(head, staging, in_bytes=options.bytes)
        own.describe(staging, target.folder, HEAD, folder, chains.compared(report, HEAD), is_head=True)
    return folder, report


def lessons(
    head: Head, target: PreTrainedModel, windows: torch.Tensor, options: argparse.Namespace
) -> Callable[[int, float], distil.Loss]:
    """Return the function that gives a step's loss, on that step's windows."""
    states = States(head, target, windows, available() // 2)

    def loss(step: int, progress: float) -> distil.Loss:
        chosen = distil.rows_of_step(step, options.rows, len(windows), options.seed)
        if options.start is not None:
            return unrolled_loss(head, *states.of(chosen), SETTINGS.variation_weight, STEPS)
        return unrolled_loss(head, *states.of(chosen), SETTINGS.weight_at(progress), steps_at(progress))

    return loss


def steps_at(progress: float) -> int:
    """Return how many steps a new head's training draft has."""
    return next((steps for until, steps in SHORTER if progress < until), STEPS)


def unrolled_loss(
    head: Head, taps: torch.Tensor, embeddings: torch.Tensor, expected: torch.Tensor, weight: float, steps: int
) -> distil.Loss:
    """Return the loss over all steps of the drafts that begin at every index; later steps weigh less. `expected` are
    the target's logits of the draft vocabulary, `weight` is that of total variation."""
    with mixed(taps.device):
        drafted = list(head.unroll(taps, embeddings, steps))
    parts = [distil.distance(logits, expected[:, step:], weight) for step, logits in enumerate(drafted)]
    weights = [FADE**step for step in range(steps)]
    loss = torch.stack([share * loss for share, (loss, _) in zip(weights, parts)]).sum() / sum(weights)
    return loss, torch.stack([variation for _, variation in parts]).mean()


def most_frequent(tokens: torch.Tensor, vocabulary_size: int, draft_vocab: int | None) -> torch.Tensor | None:
    """Return the sorted ids of the draft vocabulary, or None if it is the target's."""
    if draft_vocab is None or draft_vocab == vocabulary_size:
        return None
    if not 0 < draft_vocab < vocabulary_size:
        raise SettingError(f"--draft-vocab: got {draft_vocab}, allowed: 1 to {vocabulary_size}")
    counts = tokens.bincount(minlength=vocabulary_size)
    return counts.argsort(descending=True, stable=True)[:draft_vocab].sort().values
