"""Records all steps of a drafter's chains as one graph: the host passes in pending tokens and gets the proposals.

    pending tokens -> pass -> draw -> pass over the drawn tokens -> draw -> ...

This module knows neither tags nor settings. Noise arrives as `noise.row_words` of each position's key.
"""

from __future__ import annotations

import numpy as np
import torch

from covey.contracts.types import Floats, Ints
from covey.gpu.decoder import Hidden
from covey.gpu.inputs import Bucket, round_up
from covey.gpu.kernels.attention import Tiles
from covey.gpu.kernels.draws import ChainDraw
from covey.gpu.model import DeviceModel
from covey.models.lanes import Pass
from covey.models.stepper import Race

MOST = 1 << 31  # ids


class Chains:
    """Chains of one model, for up to `rows` rows and `depth` steps."""

    def __init__(self, model: DeviceModel, rows: int, depth: int) -> None:
        assert model.windows, "recorded chains need windows: their tiles are cut to suit the pass"
        self._model, self.depth = model, depth
        self.rows = most = round_up(rows)
        device = model.torch_device
        self._draw = ChainDraw(most, model.vocab_size, device)
        sizes = {"temperatures": 2 * most, "words": depth * 3 * most, "count": most}
        sizes |= dict.fromkeys(("positions", "slots", "seen"), (depth - 1) * most)
        starts = np.cumsum([0, *sizes.values()]).tolist()
        self._at = {name: slice(start, start + size) for (name, size), start in zip(sizes.items(), starts)}
        self._host = torch.zeros(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._given = self._host.numpy()
        self._there = torch.zeros(starts[-1], dtype=torch.int32, device=device)
        self._drawn = torch.zeros(2, most, depth, dtype=torch.int32, device=device)
        self._next = torch.zeros(most, dtype=torch.int32, device=device)
        self._numbers = torch.arange(most, dtype=torch.int32, device=device)

    @torch.inference_mode()
    def propose(self, work: Pass, slots: Ints, positions: Ints, race: Race) -> tuple[Ints, Floats]:
        """Return tokens and the logs of their shares, each [rows, depth]. `work` computes the rows' pending tokens, and
        its `out` are the last one of each row. `slots` and `positions` [rows, depth - 1] are those of the drafted
        tokens that the chain goes on from."""
        depth, _, rows = race.words.shape
        bucket, drawn = self._model.give(work), min(race.vocab_size or MOST, self._model.vocab_size)
        self._give(work.lanes.lengths, slots, positions, race)
        self._model.graphs.run(("chain", bucket, depth, drawn), lambda: self._run(bucket, depth, drawn))
        chains = self._drawn[:, :rows, :depth].cpu().numpy()
        return chains[0], chains[1].view(np.float32)

    def _give(self, seen: Ints, slots: Ints, positions: Ints, race: Race) -> None:
        """Copy the inputs to the device. The buffer is free: the last proposal waited for its result."""
        depth, _, rows = race.words.shape
        most, given = self.rows, self._given
        given[self._at["temperatures"]].view(np.float64)[:rows] = race.temperatures
        given[self._at["words"]].reshape(self.depth, 3, most)[:depth, :, :rows] = race.words
        counts = given[self._at["count"]]
        counts[:rows], counts[rows:] = 1, 0
        reach: Ints = seen[:, None] + np.arange(1, depth, dtype=np.int32)
        for name, values, rest in (("positions", positions, 0), ("slots", slots, -1), ("seen", reach, 0)):
            there = given[self._at[name]].reshape(self.depth - 1, most)[: depth - 1]
            there[:, :rows], there[:, rows:] = values.T, rest
        self._there.copy_(self._host, non_blocking=True)

    def _run(self, bucket: Bucket, depth: int, vocab_size: int) -> torch.Tensor:
        model, rows = self._model, bucket.out
        tokens, scores = self._drawn[0], self._drawn[1].view(torch.float32)
        temperatures = self._there[self._at["temperatures"]].view(torch.float64)[:rows]
        words = self._there[self._at["words"]].view(self.depth, 3, self.rows)[:, :, :rows]
        out = model.inputs.out(bucket)
        hidden = model.hidden(bucket)
        hidden = Hidden(hidden.normed.index_select(0, out), hidden.stream.index_select(0, out), [])
        for step in range(depth):
            drawn = tokens[:rows], scores[:rows], self._next[:rows]
            logits = model.decoder.logits(hidden.normed)[:, :vocab_size]
            self._draw.launch(logits, temperatures, words[step], step, *drawn)
            if step + 1 < depth:
                tiles, slots = self._tiles(step, bucket), self._of_step("slots", step, rows)
                hidden = model.next(self._next[:rows], slots, tiles, hidden)
        return self._drawn

    def _of_step(self, name: str, step: int, rows: int) -> torch.Tensor:
        return self._there[self._at[name]].view(self.depth - 1, self.rows)[step, :rows]

    def _tiles(self, step: int, bucket: Bucket) -> Tiles:
        """Return tiles of one query per row. The rows' block tables are those of the pass over the pending tokens."""
        rows = bucket.out
        given = self._model.inputs.tiles(bucket)
        seen = self._of_step("seen", step, rows)
        return Tiles(
            tokens=1,
            parts=self._model.tiling.parts(rows),
            first=self._numbers[:rows],
            count=self._there[self._at["count"]][:rows],
            row=self._numbers[:rows],
            reach=seen,
            base=seen,
            seen=seen,
            positions=self._of_step("positions", step, rows),
            bits=given.bits,
            order=given.order,
            tail=given.tail,
            tables=given.tables,
            header=given.header,
        )
