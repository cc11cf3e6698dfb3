"""A Hugging Face language model on a GPU, with the interface of `covey.models.model.PagedModel`. Passes are recorded
once per bucket and replayed.

This module knows no requests, block owners or sampling. It raises UnsupportedModel for models that its kernels do not
compute; `PagedModel` runs those.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import torch

from covey.contracts.errors import UnsupportedModel
from covey.contracts.types import Ints, Words
from covey.gpu.decoder import Decoder, Hidden
from covey.gpu.graphs import Graphs
from covey.gpu.inputs import Bucket, Inputs, round_up
from covey.gpu.kernels.attention import Tiles
from covey.gpu.kernels.layout import Layout
from covey.gpu.store import KVStore
from covey.gpu.tilings import Tiling, programs_of, span_of
from covey.models.agreement import Room, passes_agree
from covey.models.heads import Taps
from covey.models.lanes import Lanes, Pass, Windows, chain, windows_of
from covey.models.modules import Source, close, modules_of
from covey.models.states import StatesOf

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # model types that the kernels compute
SEGMENT_BYTES = 64 << 20  # of KV memory, which grows and shrinks by whole segments
MOST_NODES = 256  # of a row's tree
RECORDED = 640  # tokens; a larger pass takes longer than its launches do, so recording gains nothing
LOGITS_BYTES = 256 << 20  # the most for the logits of recorded passes
log = logging.getLogger(__name__)


class DeviceModel:
    """One model and its KV memory of `blocks` blocks; not safe to call from two threads at once. Logits are valid until
    the next pass. With `numerics` "invariant" a token's logits are the same bits in any pass. The price is that
    products and tiles are not cut to suit the pass."""

    padding_slot = -1  # tokens with this slot do not keep their keys and values

    def __init__(
        self,
        source: Source,
        *,
        dtype: str = "auto",
        device: str = "auto",
        blocks: int,
        block_size: int = 16,
        numerics: str = "fast",
        max_pass_tokens: int = 512,
        most_blocks: int = 0,
        vocab_size: int = 0,
        taps: Taps | None = None,
    ) -> None:
        """Load the model. Its KV memory may grow to `most_blocks`. With `vocab_size`, outputs from that id on are cut
        off. With `taps`, passes keep states for a head."""
        modules = modules_of(source, dtype=dtype, device=device, vocab_size=vocab_size)
        name = str(modules.folder)
        if modules.config.model_type not in FAMILIES:
            raise UnsupportedModel(f"{name}: the kernels do not compute models of type {modules.config.model_type}")
        if modules.dtype == torch.float64 or modules.shape.head_dim % 8:
            raise UnsupportedModel(f"{name}: no kernels for float64, or for heads of {modules.shape.head_dim} elements")
        self.shape, self.end_ids = modules.shape, modules.end_ids
        self.vocab_size, self.max_positions = modules.vocab_size, modules.max_positions
        self.torch_device, self.torch_dtype = modules.device, modules.dtype
        self.blocks, self.most_blocks = blocks, max(blocks, most_blocks)
        self.block_size, self.max_pass_tokens = block_size, max_pass_tokens
        self.numerics = numerics
        self.windows = numerics != "invariant"  # in windows, siblings stand between a query's own keys
        line_bytes = max_pass_tokens * self.shape.heads * self.shape.head_dim * 4
        span = 0 if self.windows else span_of(self.max_positions, line_bytes)
        self.tiling = Tiling(
            self.shape.share,
            self.shape.kv_heads,
            programs_of(self.torch_device),
            wide=self.torch_dtype == torch.float32,
            span=span,
            spans=-(-self.max_positions // span) if span else 0,
        )
        count = min(48, self.max_positions, max_pass_tokens, blocks * block_size)
        text = modules.trial(count)
        examined = modules.examine(text)
        self._states = StatesOf(taps, self.shape, self.torch_dtype, self.torch_device)
        self.state_width, self._first_plane = self._states.width, modules.layers
        layers = modules.layers + self._states.planes
        block = layers * 2 * self.shape.kv_heads * block_size * self.shape.head_dim * self.torch_dtype.itemsize
        segment = min(max(1, SEGMENT_BYTES // block), blocks)
        self.store = KVStore(
            Layout(layers, self.shape.kv_heads, self.shape.head_dim, block_size, segment),
            segments=-(-blocks // segment),
            most_segments=-(-max(blocks, most_blocks) // segment),
            dtype=self.torch_dtype,
            device=self.torch_device,
        )
        self.copy_slots, self.clear_slots = self.store.copy_slots, self.store.clear_slots
        self.move_blocks, self.bytes_per_block = self.store.move_blocks, self.store.bytes_per_block
        settings, positions = examined.settings, self.max_positions
        self.decoder = Decoder(
            modules.module, self.shape, settings, self.store, self.tiling, positions, name, self._states.layers
        )
        widest = -(-self.max_positions // block_size) + -(-MOST_NODES // block_size)
        self.inputs = Inputs(max_pass_tokens, widest, MOST_NODES, self.tiling, self.torch_device)
        most = min(round_up(min(max_pass_tokens, RECORDED)), LOGITS_BYTES // (4 * self.vocab_size))
        self._logits = torch.empty(most, self.vocab_size, device=self.torch_device)
        self.graphs = Graphs(self.torch_device)
        with torch.inference_mode():
            logits = self.forward(chain(text, block_size))
            if not close(logits, examined.logits, self.torch_dtype):
                raise UnsupportedModel(f"{name}: the kernels' logits differ from those of its modules")
            if taps is not None:
                self.states(np.zeros(1, np.int32))  # compiles what reads them
            self.clear_slots(np.arange(count, dtype=np.int32))
            if numerics == "invariant":
                self._prove_invariant(name)

    @property
    def dtype(self) -> str:
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def weight_type(self) -> str:
        return self.dtype

    @property
    def device(self) -> str:
        return str(self.torch_device)

    def _prove_invariant(self, name: str) -> None:
        room = Room(
            self.vocab_size, self.max_positions, self.blocks, self.block_size, self.max_pass_tokens, self.tiling.span
        )
        if not passes_agree(lambda work: self.forward(work).clone(), room):
            raise UnsupportedModel(f"{name}: a token's bits depend on the rest of its pass on this {self.device}")
        for index in range(self.store.segments):
            self.store.segment(index).zero_()

    @torch.inference_mode()
    def forward(self, work: Pass) -> torch.Tensor:
        """Return logits [len(out), vocab] in float32; write the tokens' keys and values."""
        bucket = self.give(work)
        if bucket.tokens > RECORDED or bucket.out > len(self._logits):
            return self.compute(bucket)[: len(work.out)]
        return self.graphs.run(bucket, lambda: self.compute(bucket))[: len(work.out)]

    def give(self, work: Pass) -> Bucket:
        """Copy a pass to the addresses that `compute` reads."""
        work.check_tokens(self.vocab_size)
        return self.inputs.fill(work, self._seen(work))

    def compute(self, bucket: Bucket) -> torch.Tensor:
        """Return logits [bucket.out, vocab] in float32 of the pass given last. Nothing in it waits for the host."""
        logits = self.decoder.logits(self.hidden(bucket).normed.index_select(0, self.inputs.out(bucket)))
        if bucket.out > len(self._logits):
            return logits.float()
        return self._logits[: bucket.out].copy_(logits)  # shared, or every recording would keep its own copy

    def hidden(self, bucket: Bucket) -> Hidden:
        """Return the hidden states of the pass given last; keep its states."""
        inputs, slots = self.inputs, self.inputs.slots(bucket)
        hidden = self.decoder.hidden(inputs.tokens(bucket), slots, inputs.tiles(bucket))
        if hidden.taps:
            self.store.write_slots(slots, self._states.laid(hidden.taps), self._first_plane)
        return hidden

    def next(
        self,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        tiles: Tiles,
        above: Hidden,  # noqa: ARG002
    ) -> Hidden:
        """Return the hidden states of a pass of one token for each row. `above` are the rows' of the token before."""
        return self.decoder.hidden(tokens, slots, tiles)

    @torch.inference_mode()
    def states(self, slots: Ints) -> Words:
        """Return the states [slots, width] of the tokens in these slots."""
        return self._states.read(self.store.read_slots(slots, self._first_plane))

    def _seen(self, work: Pass) -> Windows | Lanes:
        if work.size > self.max_pass_tokens:
            raise ValueError(f"a pass of {work.size} tokens; this model was built for {self.max_pass_tokens}")
        if not self.windows:
            assert isinstance(work.lanes, Lanes), "windows would put siblings between a query's own keys"
            return work.lanes
        return windows_of(work.lanes) if isinstance(work.lanes, Lanes) else work.lanes

    def grow(self, blocks: int) -> int:
        """Grow KV memory to `blocks` blocks, by whole segments, as far as `most_blocks` allows. Return how many can be
        used now. Raises MemoryError if the device has no memory for them."""
        blocks = min(blocks, self.most_blocks)
        segment = self.store.layout.segment_blocks
        missing = -(-blocks // segment) * segment - self.store.blocks
        if missing > 0:
            self.store.grow(missing)
        self.blocks = max(self.blocks, min(blocks, self.store.blocks))
        if self.blocks < blocks:
            raise MemoryError(f"the device has no memory for {blocks} KV blocks, only for {self.blocks}")
        return self.blocks

    def shrink(self, blocks: int) -> bool:
        """Free all but the first `blocks` blocks. Returns whether their memory was given back."""
        self.blocks = min(self.blocks, blocks)
        self.store.shrink(self.store.blocks - self.blocks)
        return True

    def record(self, rows: int, tokens_per_row: int) -> None:
        """Record passes of up to `rows` rows with up to `tokens_per_row` tokens each now, because a recording takes as
        long as dozens of passes."""
        for count in sorted({round_up(count) for count in range(1, rows + 1)}):
            for each in range(1, tokens_per_row + 1):
                if count * each <= self.max_pass_tokens and each < self.max_positions:
                    for _ in range(2):
                        self.forward(self._idle(count, each))
        longest = min(self.max_pass_tokens, self.max_positions - 1)
        if longest > 0:  # compiles the kernels for a long prompt; only its last logits are ever wanted
            self.forward(replace(self._idle(1, longest), out=np.array([longest - 1], np.int32)))

    def _idle(self, rows: int, each: int) -> Pass:
        """Return a pass whose tokens are not kept."""
        size = rows * each
        lanes = Lanes(
            np.arange(rows + 1, dtype=np.int32) * np.int32(each),
            np.full(rows, each, np.int32),
            np.zeros((rows, -(-each // self.block_size)), np.int32),
        )
        at = np.tile(np.arange(each, dtype=np.int32), rows)
        none = np.full(size, self.padding_slot, np.int32)
        return Pass(np.zeros(size, np.int32), at, none, lanes, np.arange(size, dtype=np.int32))
