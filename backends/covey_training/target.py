"""Trains the target on packed documents of all domains; resumable, and deterministic when its budget is steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from covey_client.progress import LINE_SECONDS, Steps
from covey_training import checkpoint
from covey_training.interrupts import held_back
from covey_training.numbers import mixed
from covey_training.optimiser import Budget, Optimisers, Rates
from covey_training.streams import Mixture

RATES = Rates(muon=0.012, adam=1.5e-3)
# Copying takes the most practice; of the others, small corpora would be learned by heart if they had larger shares.
TURNS = (
    "edits", "translation", "edits", "code", "edits", "math", "edits", "summarisation", "edits", "code",
    "edits", "translation", "edits", "chat", "edits", "math", "edits", "code", "translation", "translation",
)  # fmt: skip


@dataclass(frozen=True)
class TargetSettings:
    """The target's training; the last `long_share` of the budget reads long windows, so that positions generalise."""

    rates: Rates = RATES
    rows: int = 4
    length: int = 1024  # an edit and the text before it fit in
    long_factor: int = 2
    long_share: float = 0.15
    save_seconds: float = 300.0
    check_seconds: float = 600.0
    log_every: int = 10

    def shape(self, progress: float) -> tuple[int, int]:
        """Return (rows, length) of the batch at this share of the budget; the number of tokens stays the same."""
        factor = self.long_factor if progress >= 1.0 - self.long_share else 1
        return max(1, self.rows // factor), self.length * factor


def cross_entropy(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss of (rows, length + 1) tokens."""
    with mixed(batch.device):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def train(
    model: LlamaForCausalLM,
    mixture: Mixture,
    validation: Mapping[str, torch.Tensor],
    budget: Budget,
    path: Path,
    *,
    settings: TargetSettings = TargetSettings(),
    stop: Callable[[int], bool] = lambda _: False,
) -> list[dict[str, Any]]:
    """Train until the budget is spent, or `stop(step)`; returns the history, which the checkpoint keeps as well."""
    device = next(model.parameters()).device
    optimisers = Optimisers(model, settings.rates)
    step, history = 0, list[dict[str, Any]]()
    if (state := checkpoint.load(path, device)) is not None:
        model.load_state_dict(state["model"])
        optimisers.restore(state["optimisers"])
        mixture.restore(**state["mixture"])
        step, history, budget.seconds_before = state["step"], state["history"], state["seconds"]

    def save() -> None:
        state = {"model": model.state_dict(), "optimisers": optimisers.state(), "mixture": mixture.state()}
        checkpoint.save(path, {**state, "step": step, "history": history, "seconds": budget.seconds})

    saved_at = checked_at = budget.seconds
    model.train()
    with Steps(apart=LINE_SECONDS) as bar, held_back() as interrupted:
        task = bar.add_task("target", total=1.0)
        losses: list[torch.Tensor] = []
        while (progress := budget.progress(step)) < 1.0 and not stop(step) and not interrupted.is_set():
            loss = cross_entropy(model, mixture.batch(*settings.shape(progress)).to(device))
            torch.autograd.backward(loss)
            optimisers.step(step, progress)
            losses.append(loss.detach())
            step += 1
            if step % settings.log_every == 0:
                mean, tokens = float(torch.stack(losses).mean()), sum(mixture.cursors.values())
                losses.clear()
                history.append({"step": step, "tokens": tokens, "seconds": round(budget.seconds, 1), "loss": mean})
                bar.update(task, completed=progress, description=f"target: step {step}, loss {mean:.3f}")
            if budget.seconds - checked_at > settings.check_seconds:
                history.append({"step": step, "validation": validate(model, validation)})
                bar.console.log(history[-1])
                checked_at = budget.seconds
            if budget.seconds - saved_at > settings.save_seconds:
                save()
                saved_at = budget.seconds
        if interrupted.is_set():
            save()
            bar.console.print(f"interrupted: kept in {path}, from where the same command goes on", soft_wrap=True)
    history.append({"step": step, "validation": validate(model, validation)})
    save()
    return history


@torch.no_grad()
def validate(model: LlamaForCausalLM, batches: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the cross-entropy per domain; leave the model in training mode."""
    device = next(model.parameters()).device
    model.eval()
    losses = {domain: float(cross_entropy(model, batch.to(device))) for domain, batch in batches.items()}
    model.train()
    return losses
