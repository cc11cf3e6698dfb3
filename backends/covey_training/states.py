"""Lessons of a head: the target's states at each window, computed once if memory can hold them all."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from covey_training.distil import taught_by
from covey_training.head_model import Head
from covey_training.numbers import fastest

GROUP = 4  # neighbouring windows whose states are computed together. It is fixed, so that a resumed run with the same
# memory computes the same bits.


class States:
    """The states of the windows, by window number."""

    def __init__(self, head: Head, target: PreTrainedModel, windows: torch.Tensor, memory: int) -> None:
        """If all states need more than `memory` bytes, they are computed at every read."""
        self._head, self._target, self._windows = head, target, windows
        self._embed, self._teach = target.get_input_embeddings(), taught_by(target, head.kept)
        self._width = int(head.config.hidden_size)
        self._keeps = windows.numel() * 4 * self._width * torch.bfloat16.itemsize <= memory
        self._kept: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def of(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the same as `Head.read` for these windows, but only the logits of the draft vocabulary."""
        device = self._target.device
        states = (self._remembered(chosen.tolist()) if self._keeps else self._computed(chosen)).to(device).float()
        tokens = self._windows[chosen].to(device)
        taps, last = states[:, :-1, : -self._width], states[:, 1:, -self._width :]
        return taps, self._embed(tokens[:, 1:]).float(), self._teach(last.to(fastest(device)))

    def _remembered(self, chosen: list[int]) -> torch.Tensor:
        for number in chosen:
            if number not in self._kept:
                first = number // GROUP * GROUP
                group = range(first, min(first + GROUP, len(self._windows)))
                self._kept |= zip(group, self._computed(torch.tensor(group)).cpu())
        return torch.stack([self._kept[number] for number in chosen])

    def _computed(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the taps and the last state of each position, concatenated."""
        tokens = self._windows[numbers].to(self._target.device)
        out = self._target.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        taps = [out.hidden_states[layer] for layer in self._head.layers]
        return torch.cat([*taps, out.last_hidden_state], -1).to(torch.bfloat16)
