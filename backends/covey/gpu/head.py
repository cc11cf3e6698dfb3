"""An EAGLE-3 head on a GPU: a pass also reads a state for each token, and chains go on from the head's own outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from covey.contracts.types import Floats, Ints
from covey.gpu.decoder import Hidden
from covey.gpu.inputs import Bucket, round_up
from covey.gpu.kernels.attention import Tiles
from covey.gpu.model import DeviceModel
from covey.models.lanes import Pass
from covey.models.modules import Modules


class DeviceHead(DeviceModel):
    """A pass without states reads embeddings in their place."""

    def __init__(self, modules: Modules, **settings: Any) -> None:
        self.width = int(modules.config.hidden_size)
        self._normed = bool(modules.config.normed_output)
        size = round_up(settings["max_pass_tokens"]), self.width
        self._read = torch.zeros(size, dtype=modules.dtype, device=modules.device)  # the states of the pass given last
        self._made = torch.zeros_like(self._read)  # what the head made of its tokens
        super().__init__(modules, **settings)

    def give(self, work: Pass) -> Bucket:
        bucket = super().give(work)
        if work.states is None:
            states = self.decoder.embedded(self.inputs.tokens(bucket)[: work.size])
        else:
            states = torch.from_numpy(work.states)
        self._read[: work.size].copy_(states)
        return bucket

    def hidden(self, bucket: Bucket) -> Hidden:
        inputs, count = self.inputs, bucket.tokens
        found = self.decoder.hidden(
            inputs.tokens(bucket), inputs.slots(bucket), inputs.tiles(bucket), self._read[:count]
        )
        self._made[:count].copy_(self._left(found))
        return found

    def next(self, tokens: torch.Tensor, slots: torch.Tensor, tiles: Tiles, above: Hidden) -> Hidden:
        return self.decoder.hidden(tokens, slots, tiles, self._left(above))

    def outputs(self, tokens: Ints) -> Floats:
        """Return what the head made of these tokens of the last pass, which a later step reads in place of states."""
        there = torch.from_numpy(tokens.astype(np.int64)).to(self.torch_device)
        found: Floats = self._made[there].float().cpu().numpy()
        return found

    def _left(self, hidden: Hidden) -> torch.Tensor:
        return hidden.normed if self._normed else hidden.stream
