"""Distils drafters from the target's distributions: cross-entropy first, then mostly total variation.

Acceptance is one minus the total variation, so the loss ends on what is measured; it begins with the KL divergence,
whose gradients do not vanish where a drafter is far off. The general drafter begins alone, and the specialists start
from a copy of it; from there all take the same steps with the same number of tokens, so that the general one spends on
six domains what each specialist spends on one, and every drafter has as many updates behind it as any other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel

from covey.models.modules import scaled
from covey_client.progress import LINE_SECONDS, Steps
from covey_training import checkpoint
from covey_training.interrupts import held_back
from covey_training.numbers import fastest, mixed
from covey_training.optimiser import Budget, Optimisers, Rates
from covey_training.teacher import Lessons

Loss = tuple[torch.Tensor, torch.Tensor]  # what a step goes down by, and the mean total variation

RATES = Rates(muon=0.03, adam=5e-3, weight_decay=0.0, warmup=10)


@dataclass(frozen=True)
class DistilSettings:
    """The settings by which drafters train.

    The weight of total variation grows linearly until `mixed_by` of the budget; the specialists join in after
    `shared_by` of it.
    """

    rates: Rates = RATES
    rows: int = 4
    variation_weight: float = 0.9
    mixed_by: float = 0.5
    shared_by: float = 0.1
    save_seconds: float = 120.0
    log_every: int = 10


def start_from_target(student: LlamaForCausalLM, target: PreTrainedModel) -> None:
    """Begin with the best projection of the target's embedding onto the student's width."""
    table = target.get_input_embeddings().weight.detach().float()
    table = table - table.mean(0)
    width = student.config.hidden_size
    _, directions = torch.linalg.eigh(table.T @ table)  # the widest last
    with torch.no_grad():
        projected = table @ directions.flip(1)[:, :width]
        student.get_input_embeddings().weight[:, : projected.shape[1]].copy_(projected * 0.02 / projected.std())


def distance(student_logits: torch.Tensor, teacher_logits: torch.Tensor, variation_weight: torch.Tensor) -> Loss:
    """Return (loss, mean total variation) of two sets of logits."""
    log_q = student_logits.float().log_softmax(-1)
    log_p = teacher_logits.float().log_softmax(-1)
    p = log_p.exp()
    divergence = (p * (log_p - log_q)).sum(-1).mean()
    variation = (p - log_q.exp()).abs().sum(-1).mean() / 2
    return (1 - variation_weight) * divergence + variation_weight * variation, variation.detach()


def taught_by(target: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that gives the target's logits for its last hidden states."""
    head = copy.deepcopy(target.get_output_embeddings()).to(fastest(target.device)).requires_grad_(False)
    return lambda hidden: scaled(target.config, head(hidden))


def rows_of_step(step: int, rows: int, lessons: int, seed: int) -> torch.Tensor:
    """Return the indices of this step's windows: epochs in random order, a function of the step alone."""
    positions = np.arange(step * rows, (step + 1) * rows)
    epochs = {
        int(epoch): np.random.default_rng([seed, int(epoch)]).permutation(lessons) for epoch in positions // lessons
    }
    return torch.tensor([int(epochs[int(at // lessons)][at % lessons]) for at in positions])


def train(
    students: Mapping[str, LlamaForCausalLM],
    lessons: Mapping[str, Lessons],
    target: PreTrainedModel,
    budget: Budget,
    path: Path,
    *,
    seed: int,
    settings: DistilSettings = DistilSettings(),
    stop: Callable[[int], bool] = lambda _: False,
) -> list[dict[str, Any]]:
    """Train the drafters side by side, each on its lessons, until the budget is spent or `stop(step)`.

    The first of them is the one that begins; a drafter that is alone simply trains.
    """
    device = next(target.parameters()).device
    teach = taught_by(target)
    lessons = {name: Lessons(lesson.tokens.to(device), lesson.hidden.to(device)) for name, lesson in lessons.items()}

    def loss(name: str, step: int, weight: torch.Tensor) -> Loss:
        chosen = rows_of_step(step, settings.rows, len(lessons[name]), seed).to(device)
        tokens, hidden = lessons[name].tokens[chosen], lessons[name].hidden[chosen]
        with mixed(device):
            logits = students[name](input_ids=tokens, use_cache=False).logits
        return distance(logits, teach(hidden), weight)

    return fit(students, loss, budget, path, device=device, settings=settings, stop=stop)


def fit(
    students: Mapping[str, nn.Module],
    loss_of: Callable[[str, int, torch.Tensor], Loss],
    budget: Budget,
    path: Path,
    *,
    device: torch.device,
    settings: DistilSettings = DistilSettings(),
    stop: Callable[[int], bool] = lambda _: False,
) -> list[dict[str, Any]]:
    """Train any drafters as `train` does; `loss_of(name, step, weight of total variation)` is what one learns by."""
    optimisers = {name: Optimisers(student, settings.rates) for name, student in students.items()}
    first, *others = students
    step, joined, history = 0, not others, list[dict[str, Any]]()
    if (state := checkpoint.load(path, device)) is not None:
        for name, student in students.items():
            student.load_state_dict(state["models"][name])
            optimisers[name].restore(state["optimisers"][name])
        step, history, budget.seconds_before = state["step"], state["history"], state["seconds"]
        joined = state["joined"]

    def save() -> None:
        models = {name: student.state_dict() for name, student in students.items()}
        states = {name: one.state() for name, one in optimisers.items()}
        record = {"step": step, "joined": joined, "history": history, "seconds": budget.seconds}
        checkpoint.save(path, {"models": models, "optimisers": states, **record})

    saved_at = budget.seconds
    for student in students.values():
        student.train()
    with Steps(apart=LINE_SECONDS) as bar, held_back() as interrupted:
        task = bar.add_task("drafters", total=1.0)
        variations: dict[str, list[torch.Tensor]] = {name: [] for name in students}
        while (progress := budget.progress(step)) < 1.0 and not stop(step) and not interrupted.is_set():
            weight = torch.tensor(settings.variation_weight * min(1.0, progress / settings.mixed_by), device=device)
            if not joined and progress >= settings.shared_by:
                joined = True
                for name in others:
                    students[name].load_state_dict(students[first].state_dict())
                    optimisers[name].restore(copy.deepcopy(optimisers[first].state()))
            for name in students if joined else [first]:
                loss, variation = loss_of(name, step, weight)
                torch.autograd.backward(loss)
                optimisers[name].step(step, progress)
                variations[name].append(variation)
            step += 1
            if step % settings.log_every == 0:
                acceptance = {name: 1 - float(torch.stack(seen).mean()) for name, seen in variations.items() if seen}
                for seen in variations.values():
                    seen.clear()
                history.append({"step": step, "seconds": round(budget.seconds, 1), "acceptance": acceptance})
                mean = sum(acceptance.values()) / len(acceptance)
                bar.update(task, completed=progress, description=f"drafters: step {step}, acceptance {mean:.3f}")
            if budget.seconds - saved_at > settings.save_seconds:
                save()
                saved_at = budget.seconds
        if interrupted.is_set():
            save()
            bar.console.print(f"interrupted: kept in {path}, from where the same command goes on", soft_wrap=True)
    save()
    return history
