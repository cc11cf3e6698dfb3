"""Distils a drafter from the target's distributions: by cross-entropy first, then mostly by total variation.

Acceptance is one minus the total variation, so training ends on the measured quantity. It begins with the KL
divergence, whose gradients do not vanish where a drafter is far off.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel

from covey.contracts.errors import SettingError
from covey.models.modules import scaled
from covey_client.progress import LINE_SECONDS, Steps
from covey_training.interrupts import held_back
from covey_training.numbers import fastest, mixed
from covey_training.optimiser import Budget, Optimisers, Rates
from covey_training.teacher import Lessons

Loss = tuple[torch.Tensor, torch.Tensor]  # the loss to minimise, and the mean total variation
CACHED_ROWS = 32  # rows of logits whose loss is computed together on a CPU
RATES = Rates(muon=0.03, adam=5e-3, weight_decay=0.0, warmup=10)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `path`, and `state["history"]` next to it as JSON for people to read. If the process is killed meanwhile,
    the previous file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)
    path.with_suffix(".json").write_text(json.dumps(state["history"], indent=1) + "\n", encoding="utf-8")


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the state, or None if there is no checkpoint yet."""
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


@dataclass(frozen=True)
class DistilSettings:
    """The settings of a training; the weight of total variation grows until `mixed_by` of the budget."""

    rates: Rates = RATES
    rows: int = 4
    variation_weight: float = 0.9
    mixed_by: float = 0.5
    save_seconds: float = 120.0
    log_every: int = 10

    def weight_at(self, progress: float) -> float:
        """Return the weight of total variation."""
        return self.variation_weight * min(1.0, progress / self.mixed_by)


def start_from_target(student: LlamaForCausalLM, target: PreTrainedModel) -> None:
    """Initialise the student's embedding with the best projection of the target's onto the student's width."""
    table = target.get_input_embeddings().weight.detach().float()
    table = table - table.mean(0)
    width = student.config.hidden_size
    _, directions = torch.linalg.eigh(table.T @ table)  # the largest last
    with torch.no_grad():
        projected = table @ directions.flip(1)[:, :width]
        student.get_input_embeddings().weight[:, : projected.shape[1]].copy_(projected * 0.02 / projected.std())


def distance(student_logits: torch.Tensor, teacher_logits: torch.Tensor, variation_weight: float) -> Loss:
    """Return the loss and the mean total variation of two sets of logits."""
    loss, variation = _Distance.apply(student_logits, teacher_logits, variation_weight)  # type: ignore[no-untyped-call]
    return loss, variation.detach()


class _Distance(torch.autograd.Function):
    """Computes the gradient with the loss, a few rows at a time while they are in the cache. Autograd would take four
    times as long, which is as long as the product that makes the logits."""

    @staticmethod
    def forward(ctx: Any, student: torch.Tensor, teacher: torch.Tensor, weight: float) -> Loss:
        gradient = torch.empty(student.shape, dtype=torch.float32, device=student.device)
        rows = [logits.detach().flatten(0, -2) for logits in (student, teacher, gradient)]
        loss = variation = torch.zeros((), dtype=torch.float64, device=student.device)
        at_once = CACHED_ROWS if student.device.type == "cpu" else len(rows[0])
        for own, given, gradient_of in zip(*(each.split(at_once) for each in rows)):
            log_q, log_p = own.float().log_softmax(-1), given.float().log_softmax(-1)
            p, q = log_p.exp(), torch.exp(log_q, out=gradient_of)
            divergence = (p * (log_p - log_q)).sum()
            apart = q - p
            distance = apart.abs().sum() / 2
            loss = loss + (1 - weight) * divergence + weight * distance
            variation = variation + distance
            towards = apart.sign_().mul_(q)
            gradient_of.mul_(1 - weight - weight / 2 * towards.sum(-1, keepdim=True))
            gradient_of.add_(towards, alpha=weight / 2).sub_(p, alpha=1 - weight)
        ctx.save_for_backward(gradient.div_(len(rows[0])).to(student.dtype))
        return (loss / len(rows[0])).float(), (variation / len(rows[0])).float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None


def taught_by(target: PreTrainedModel, kept: torch.Tensor | None = None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from the target's last hidden states to its logits, of all tokens or only those in `kept`."""
    head = copy.deepcopy(target.get_output_embeddings()).to(fastest(target.device)).requires_grad_(False)
    if kept is not None:
        head.weight = nn.Parameter(head.weight[kept], requires_grad=False)
        head.bias = None if head.bias is None else nn.Parameter(head.bias[kept], requires_grad=False)
    return lambda hidden: scaled(target.config, head(hidden))


def rows_of_step(step: int, rows: int, lessons: int, seed: int) -> torch.Tensor:
    """Return the indices of this step's windows. Epochs are in random order; the result depends only on the step."""
    positions = np.arange(step * rows, (step + 1) * rows)
    epochs = {
        int(epoch): np.random.default_rng([seed, int(epoch)]).permutation(lessons) for epoch in positions // lessons
    }
    return torch.tensor([int(epochs[int(at // lessons)][at % lessons]) for at in positions])


def train(
    student: LlamaForCausalLM,
    lessons: Lessons,
    target: PreTrainedModel,
    budget: Budget,
    path: Path,
    *,
    seed: int,
    settings: DistilSettings = DistilSettings(),
    stop: Callable[[int], bool] = lambda _: False,
) -> list[dict[str, Any]]:
    """Train the drafter on its lessons until the budget is spent or `stop(step)` is True. Return the history."""
    device = next(target.parameters()).device
    teach = taught_by(target)
    lessons = Lessons(lessons.tokens.to(device), lessons.hidden.to(device))

    def loss(step: int, progress: float) -> Loss:
        chosen = rows_of_step(step, settings.rows, len(lessons), seed).to(device)
        tokens, hidden = lessons.tokens[chosen], lessons.hidden[chosen]
        with mixed(device):
            logits = student(input_ids=tokens, use_cache=False).logits
        return distance(logits, teach(hidden), settings.weight_at(progress))

    return fit(student, loss, budget, path, device=device, settings=settings, stop=stop)


def fit(
    student: nn.Module,
    loss_of: Callable[[int, float], Loss],
    budget: Budget,
    path: Path,
    *,
    device: torch.device,
    settings: DistilSettings = DistilSettings(),
    stop: Callable[[int], bool] = lambda _: False,
) -> list[dict[str, Any]]:
    """Train any drafter like `train` does. `loss_of(step, share of the budget spent)` returns the loss."""
    optimisers = Optimisers(student, settings.rates)
    step, history = 0, list[dict[str, Any]]()
    if (state := load_checkpoint(path, device)) is not None:
        student.load_state_dict(state["model"])
        optimisers.restore(state["optimisers"])
        step, history, budget.seconds_before = state["step"], state["history"], state["seconds"]

    def save() -> None:
        learnt = {"model": student.state_dict(), "optimisers": optimisers.state()}
        save_checkpoint(path, {**learnt, "step": step, "history": history, "seconds": budget.seconds})

    saved_at = budget.seconds
    student.train()
    with Steps(apart=LINE_SECONDS) as bar, held_back() as interrupted:
        task, told = bar.add_task("drafter", total=1.0), budget.seconds
        variations: list[torch.Tensor] = []
        lessons = 0  # since the start or the last entry in the history
        while (progress := budget.progress(step)) < 1.0 and not stop(step) and not interrupted.is_set():
            loss, variation = loss_of(step, progress)
            if torch.isfinite(loss):  # a lesson for which the target gives NaN must not end a run of hours
                torch.autograd.backward(loss)
                optimisers.step(step, progress)
                variations.append(variation)
            step, lessons = step + 1, lessons + 1
            if step % settings.log_every == 0 and (variations or lessons >= settings.log_every):
                if not variations:
                    raise SettingError(f"none of {lessons} lessons had a finite loss: try another --device")
                acceptance, lessons = 1 - float(torch.stack(variations).mean()), 0
                variations.clear()
                history.append({"step": step, "seconds": round(budget.seconds, 1), "acceptance": acceptance})
                said = f"drafter: step {step}, acceptance {acceptance:.3f}"
                bar.update(task, completed=progress, description=said)
                told = budget.seconds
            elif budget.seconds - told > LINE_SECONDS:  # steps may take long
                bar.update(task, completed=progress, description=f"drafter: step {step}")
                told = budget.seconds
            if budget.seconds - saved_at > settings.save_seconds:
                save()
                saved_at = budget.seconds
        if interrupted.is_set():
            save()
            bar.console.print(f"interrupted: saved in {path}; the same command resumes", soft_wrap=True)
    save()
    return history
