"""Muon for the hidden matrices, AdamW for the rest, and a schedule over the share of the budget that is spent."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from covey_training.numbers import fastest


@dataclass(frozen=True)
class Rates:
    """Peak learning rates, and the schedule: warm up, hold, then fall linearly to zero over the last `decay`."""

    muon: float
    adam: float
    weight_decay: float = 0.05
    warmup: int = 30
    decay: float = 0.3


@dataclass
class Budget:
    """A number of steps, or minutes on the clock over all resumed runs. The schedule follows `progress`.

    A budget of minutes ends on time with the rate decayed, however slow the machine is. Only a budget of steps is
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


class Clock:
    """The minutes of a whole run. Without a limit nothing is cut short."""

    def __init__(self, minutes: float | None) -> None:
        self._began, self._seconds = time.monotonic(), None if minutes is None else 60 * minutes

    def left(self, share: float) -> float | None:
        """Return the seconds until this share of the minutes has passed, or None without a limit."""
        return None if self._seconds is None else max(0.0, self._began + share * self._seconds - time.monotonic())

    def budget(self, steps: int | None, share: float) -> Budget:
        """Return the training's budget: until this share of the minutes has passed, or `steps` without a limit."""
        left = self.left(share)
        return Budget(steps=steps) if left is None else Budget(minutes=max(left, 1.0) / 60)


class Muon(Optimizer):
    """Muon with updates made orthogonal in the device's fastest dtype. PyTorch's own uses bfloat16, which is some
    twenty times slower on a CPU that emulates it."""

    MOMENTUM, STEPS, COEFFICIENTS = 0.95, 5, (3.4445, -4.775, 2.0315)

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter.grad)
                momentum = state["momentum"].lerp_(parameter.grad, 1 - self.MOMENTUM)
                update = self._orthogonal(parameter.grad.lerp(momentum, self.MOMENTUM))
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)

    def _orthogonal(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return nearly the closest orthogonal matrix, by Newton-Schulz steps."""
        a, b, c = self.COEFFICIENTS
        tall = matrix.shape[0] > matrix.shape[1]
        found = (matrix.T if tall else matrix).to(fastest(matrix.device))
        found = found / found.norm().clamp(min=1e-7)
        for _ in range(self.STEPS):
            gram = found @ found.T
            found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
        return found.T if tall else found


class Optimisers:
    """The two optimisers of one model, stepped together."""

    def __init__(self, model: nn.Module, rates: Rates) -> None:
        self.rates = rates
        self.parameters = list(model.parameters())
        hidden = {name for name, p in model.named_parameters() if p.ndim == 2 and not re.search("embed|lm_head", name)}
        matrices = [p for name, p in model.named_parameters() if name in hidden]
        others = [p for name, p in model.named_parameters() if name not in hidden]
        self.parts: list[tuple[Optimizer, float]] = [
            (Muon(matrices, rates.muon, rates.weight_decay), rates.muon),
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
