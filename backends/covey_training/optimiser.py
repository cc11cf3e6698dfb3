"""Muon for the hidden matrices, AdamW for the rest, and a schedule over the share of the budget that is spent."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer


@dataclass(frozen=True)
class Rates:
    """Peak learning rates, and the schedule's shape: warm up, hold, fall linearly to nothing over the last `decay`."""

    muon: float
    adam: float
    weight_decay: float = 0.05
    warmup: int = 30
    decay: float = 0.3


@dataclass
class Budget:
    """A number of steps, or minutes on the clock over all resumed runs; progress is what the schedule sees.

    Counting minutes makes a run end on time and decayed, however much of the machine it gets; only steps are
    reproducible.
    """

    steps: int | None = None
    minutes: float | None = None
    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("a budget is either a number of steps or a number of minutes: give one of them")

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def progress(self, step: int) -> float:
        if self.minutes is not None:
            return self.seconds / (60 * self.minutes)
        assert self.steps is not None
        return step / self.steps


class Optimisers:
    """The two optimisers of one model, stepped together."""

    def __init__(self, model: nn.Module, rates: Rates) -> None:
        self.rates = rates
        self.parameters = list(model.parameters())
        hidden = {name for name, p in model.named_parameters() if p.ndim == 2 and not re.search("embed|lm_head", name)}
        matrices = [p for name, p in model.named_parameters() if name in hidden]
        others = [p for name, p in model.named_parameters() if name not in hidden]
        self.parts: list[tuple[Optimizer, float]] = [
            (Muon(matrices, lr=rates.muon, momentum=0.95, weight_decay=rates.weight_decay), rates.muon),
            (AdamW(others, lr=rates.adam, betas=(0.9, 0.95), weight_decay=0.0), rates.adam),
        ]

    def step(self, step: int, progress: float) -> None:
        """Apply the gradients at the schedule's rate, and clear them."""
        rates = self.rates
        scale = min(1.0, (step + 1) / rates.warmup) * min(1.0, max(0.0, 1.0 - progress) / rates.decay)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for part, peak in self.parts:
            for group in part.param_groups:
                group["lr"] = peak * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part, _ in self.parts]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        for (part, _), state in zip(self.parts, states):
            part.load_state_dict(dict(state))
