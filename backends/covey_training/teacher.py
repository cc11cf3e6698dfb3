"""The lessons of drafters: windows of text with the target's last hidden states, computed once.

The target's logits are one product of those states with its embedding. So the target reads each window only once,
however often the drafter does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from covey_client.progress import LINE_SECONDS, Steps
from covey_training.numbers import fastest, mixed


@dataclass(frozen=True)
class Lessons:
    """The windows to learn from: (n, length) tokens and (n, length, width) hidden states of the target."""

    tokens: torch.Tensor
    hidden: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)


@torch.no_grad()
def hidden_states(
    model: PreTrainedModel, windows: torch.Tensor, rows: int, seconds: float | None = None
) -> torch.Tensor:
    """Return the states of the windows, or of the first ones if time runs out."""
    began = time.monotonic()
    device = next(model.parameters()).device
    model.eval()
    parts = []
    with Steps(apart=LINE_SECONDS) as bar:
        for start in bar.track(range(0, len(windows), rows), description="target's states"):
            batch = windows[start : start + rows]
            with mixed(device):
                states = model.base_model(input_ids=batch.to(device), use_cache=False).last_hidden_state
            parts.append(states.to(fastest(device)).cpu())
            if seconds is not None and time.monotonic() - began > seconds:
                break
    return torch.cat(parts)
