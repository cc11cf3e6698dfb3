"""A model of the plain families over a paged pool, computed by OpenVINO's runtime on a CPU: tokens in, logits out.

Has the face of `PagedModel`. Knows nothing of requests, block ownership or sampling, and imports no torch.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import openvino as ov

from covey.errors import SettingError
from covey.models.agreement import Room, passes_agree
from covey.models.identity import identity
from covey.models.lanes import Pass
from covey.models.openvino import BLOCK, BYTES, KINDS, architecture
from covey.models.openvino.architecture import Architecture
from covey.models.openvino.counts import counts_agree
from covey.models.openvino.decoder import LEAST_FLOAT32, Decoder
from covey.models.openvino.graph import kind_of
from covey.models.openvino.lanes import call_of
from covey.models.openvino.pool import KeyValuePool
from covey.models.verdicts import verdict
from covey.private import kept_folder
from covey.types import Floats

log = logging.getLogger(__name__)
_SETTINGS = ("ONEDNN_", "DNNL_", "OV_")  # variables that change what the runtime does
_WHOLE = 64  # products of rows of so many numbers, or a multiple, have one order of sums however many rows there are
_LEAST = (1, 16, 32)  # tokens of a pass, of those that are tried; never fewer than threads


@dataclass(frozen=True, slots=True)
class Padding:
    """How many tokens a pass has at least, dummies included, so that no result depends on how many there are."""

    least: int


class OpenvinoModel:
    """One model and its pool of `blocks` blocks of 32 slots; not safe to call from two threads at once."""

    windows = False  # reads lanes
    whole: Literal[True] = True  # in this process
    block_size = BLOCK
    device = "cpu"

    def __init__(
        self,
        folder: str | Path,
        *,
        dtype: str,
        blocks: int,
        threads: int,
        numerics: str = "auto",
        max_pass_tokens: int = 512,
        most_blocks: int = 0,
        gaps: bool = False,
    ) -> None:
        """With `most_blocks` the pool can become so large. With `gaps` tokens may have other positions than there are
        keys before them. Raises UnsupportedModel where the runtime cannot serve."""
        if dtype not in (*KINDS, BYTES):
            raise SettingError(f"dtype: got {dtype!r}, OpenVINO's runtime computes in: {', '.join(KINDS)}")
        self._of = of = architecture.read(Path(folder))
        self.dtype, self.max_pass_tokens, self._threads = dtype, max_pass_tokens, threads
        self.vocab_size, self.max_positions, self.end_ids = of.vocab_size, of.max_positions, of.end_ids
        spare = 1 + 2 * max_pass_tokens  # dummies' keys, and a path's private blocks: no path is longer than a block
        self.pool = KeyValuePool(
            of.layers, of.kv_heads, of.head_dim, dtype=dtype, blocks=blocks, most=most_blocks, spare=spare
        )
        self.decoder = Decoder(of, self.pool, dtype=dtype, threads=threads, gaps=gaps)
        self.padding_slot = self.pool.spare[0] * BLOCK
        self.copy_slots, self.clear_slots = self.pool.copy_slots, self.pool.clear_slots
        self.move_blocks = self.pool.copy_blocks
        self.grow, self.shrink = self.pool.reserve.grow, self.pool.reserve.shrink
        self.bytes_per_block, self.most_blocks = self.pool.bytes_per_block, self.pool.reserve.most
        self.numerics = "fast"
        if numerics != "fast" and self._make_invariant():
            self.numerics = "invariant"
        elif numerics == "invariant":
            raise SettingError(
                f"numerics: invariant is not to be had for {folder} in {dtype} on this CPU by OpenVINO's runtime; use "
                "target.runtime torch, or numerics auto or fast"
            )
        else:
            self.decoder.least = 1
        self.decoder.trim()

    @property
    def blocks(self) -> int:
        """How many there are now: ids below this may be used."""
        return self.pool.reserve.blocks

    def forward(self, work: Pass) -> Floats:
        """Logits [len(out), vocab] in float32, which the next pass writes over; writes the tokens' keys and values."""
        if work.size > self.max_pass_tokens:
            raise ValueError(f"a pass of {work.size} tokens; this model was built for {self.max_pass_tokens}")
        call = call_of(work, self.pool.spare[1:])
        if len(call.blocks[0]):
            self.pool.copy_blocks(*call.blocks)
        wanted = call.wanted if len(call.wanted) else np.zeros(1, np.int32)  # a pass without any still writes keys
        logits = self.decoder.infer(call.tokens, call.past, call.tables, call.begins, wanted, work.positions)
        if len(call.slots[0]):
            self.pool.copy_slots(*call.slots)
        return logits[: len(call.wanted)]

    def _make_invariant(self) -> bool:
        """Have passes of so many tokens that no result depends on their company, where that helps."""
        facts = replace(self._of, weights={}, end_ids=())
        limits = self.blocks, self.max_pass_tokens, self._threads, self.dtype
        key = identity([asdict(facts), limits, code()])
        found = verdict(kept_folder("numerics"), key, self._find_padding, Padding)
        if found is not None:
            self.decoder.least = found.least
        return found is not None

    def _find_padding(self) -> Padding | None:
        room = Room(self.vocab_size, self.max_positions, self.blocks, BLOCK, self.max_pass_tokens)
        least = max(self._threads, LEAST_FLOAT32 if self.dtype == "float32" else 1)
        if any(width % _WHOLE for width in self._of.widths):
            least = max(least, _LEAST[-1])  # fewer differ so rarely that trials would have to be long
        for tried in sorted({max(least, each) for each in _LEAST}):
            self.decoder.least = tried
            agree = passes_agree(lambda work: self.forward(work).copy(), room)
            if agree and counts_agree(self.decoder, self.pool, room, self._of.layers * self._of.width):
                break
        else:
            tried = 0
        self.pool.clear(self.blocks)
        return Padding(tried) if tried else None


def code() -> list[object]:
    """What computes passes here, as far as results and timings depend on it."""
    settings = sorted((name, value) for name, value in os.environ.items() if name.startswith(_SETTINGS))
    files = sorted([*Path(__file__).parent.glob("*.py"), Path(__file__).parents[1] / "agreement.py"])
    return [ov.get_version(), settings, [path.read_text() for path in files]]


def block_bytes(model: Architecture, dtype: str) -> int:
    """Bytes of one KV block of a model."""
    return 2 * model.layers * model.kv_heads * model.head_dim * BLOCK * int(kind_of(dtype).size)
