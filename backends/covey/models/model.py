"""A Hugging Face language model over a paged pool of keys and values: packed tokens in, logits out.

Knows nothing of requests, block ownership or sampling: the caller says which slots a pass writes and reads. The
modules' own code runs with attention replaced (transformers' `AttentionInterface`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from covey.contracts.errors import SettingError
from covey.contracts.types import Ints, Words
from covey.models.agreement import Room, passes_agree
from covey.models.attention import Plan, Tiling, plan_lanes
from covey.models.heads import Taps
from covey.models.lanes import Lanes, Pass
from covey.models.modules import Run, Source, modules_of
from covey.models.numerics import Matrix, attention_agreement, attention_tilings, linear_granules
from covey.models.reserve import Reserve
from covey.models.rows import padded
from covey.models.states import StatesOf
from covey.models.verdicts import here, verdict
from covey.process.private import kept_folder

_NO_WEIGHTS = 1 << 40  # in place of their number, for a map that has none: never a small product


class PagedModel:
    """One model and its pool of `blocks` blocks of `block_size` slots; not safe to call from two threads at once."""

    windows = False  # reads lanes

    def __init__(
        self,
        source: Source,
        *,
        dtype: str = "auto",
        device: str = "auto",
        blocks: int,
        block_size: int = 16,
        numerics: str = "auto",
        max_pass_tokens: int = 512,
        most_blocks: int = 0,
        vocab_size: int = 0,
        taps: Taps | None = None,
    ) -> None:
        """Load the model; with `most_blocks`, on a CPU, the pool can become so large; with `vocab_size`, outputs from
        that id on are cut off; with `taps`, passes keep states for a head."""
        self._modules = modules = modules_of(source, dtype=dtype, device=device, vocab_size=vocab_size)
        self.torch_device, self.torch_dtype = modules.device, modules.dtype
        self.shape, self.end_ids = modules.shape, modules.end_ids
        self.vocab_size, self.max_positions = modules.vocab_size, modules.max_positions
        self.block_size = block_size
        self.max_pass_tokens = max_pass_tokens
        self.numerics = "fast"
        self._tiling = Tiling()
        self._states = StatesOf(taps, self.shape, self.torch_dtype, self.torch_device)
        self.state_width, layers = self._states.width, modules.layers + self._states.planes
        heads, dim = 2 * self.shape.kv_heads, self.shape.head_dim
        self._blocks, self._reserve = blocks, None
        self._most = max(blocks, most_blocks)
        if self.torch_device.type == "cpu":
            size = block_size * dim * self.torch_dtype.itemsize
            self._reserve = Reserve(layers * heads, size, blocks=blocks, most=self._most)
            whole = torch.frombuffer(self._reserve.map, dtype=self.torch_dtype)
            self._pool = whole.view(layers, heads, -1, dim)
        else:
            slots = (blocks + 1) * block_size
            self._pool = torch.zeros(layers, heads, slots, dim, dtype=self.torch_dtype, device=self.torch_device)
        self.padding_slot = self._pool.shape[2] - block_size  # of tokens whose keys are not kept, in the last block
        self.pools, self._planes = list(self._pool[: modules.layers].unbind(0)), self._pool[modules.layers :]
        modules.examine(modules.trial(min(48, self.max_positions, max_pass_tokens, blocks * block_size)))
        self._activations = modules.activate_by_rows() if numerics != "fast" else []
        if numerics != "fast" and self._make_invariant():
            self.numerics = "invariant"
        elif numerics == "invariant":
            raise SettingError(
                f"numerics: invariant is not to be had for {modules.folder} in {self.dtype} on this {self.device}; "
                "use auto or fast, or dtype bfloat16 on a CPU with BF16 instructions"
            )
        if self._reserve is None:
            self._pool.zero_()
        else:
            self._reserve.clear()

    @property
    def blocks(self) -> int:
        """Return how many blocks there are now: ids below this may be used."""
        return self._blocks if self._reserve is None else self._reserve.blocks

    @property
    def most_blocks(self) -> int:
        """Return the number of blocks that `grow` can reach."""
        return self._blocks if self._reserve is None else self._most

    @property
    def dtype(self) -> str:
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def weight_type(self) -> str:
        return self.dtype

    @property
    def device(self) -> str:
        return str(self.torch_device)

    @property
    def bytes_per_block(self) -> int:
        return self._pool[:, :, : self.block_size].numel() * self._pool.element_size()

    @torch.inference_mode()
    def forward(self, work: Pass) -> torch.Tensor:
        """Return logits [len(out), vocab] in float32 (float64 for a float64 model); write keys and values."""
        work.check_tokens(self.vocab_size)
        if work.size > self.max_pass_tokens:
            raise ValueError(f"a pass of {work.size} tokens; this model was built for {self.max_pass_tokens}")
        tokens, positions, slots, plan = self._prepare(work)
        hidden, tapped = self._modules.hidden(tokens, positions, Run(plan, slots, self.pools), self._states.layers)
        if tapped:
            self._planes.index_copy_(2, slots, self._states.laid(tapped))
        count = len(work.out)
        wanted = np.resize(work.out, padded(count, self._tiling.rows)) if count else work.out
        hidden = hidden.index_select(0, torch.from_numpy(wanted).to(self.torch_device))
        return self._modules.logits(hidden)[:count]

    @torch.inference_mode()
    def states(self, slots: Ints) -> Words:
        """Return the states [slots, width] of the tokens in these slots."""
        there = torch.from_numpy(slots.astype(np.int64)).to(self.torch_device)
        return self._states.read(self._planes.index_select(2, there))

    @torch.inference_mode()
    def copy_slots(self, source: Ints, destination: Ints) -> None:
        """Copies keys and values of all layers between slots; all are read before any is written."""
        moved = self._pool.index_select(2, torch.from_numpy(source).to(self.torch_device))
        self._pool.index_copy_(2, torch.from_numpy(destination.astype(np.int64)).to(self.torch_device), moved)

    @torch.inference_mode()
    def clear_slots(self, slots: Ints) -> None:
        """Sets keys and values of all layers to zero."""
        self._pool.index_fill_(2, torch.from_numpy(slots.astype(np.int64)).to(self.torch_device), 0)

    def grow(self, blocks: int) -> int:
        """Have so many blocks before long, as far as the pool can grow. Returns how many can be used by now; raises
        MemoryError where there is no memory for them."""
        return self._blocks if self._reserve is None else self._reserve.grow(blocks)

    def shrink(self, blocks: int) -> bool:
        """Give up all blocks but the first ones before long. Returns whether their memory has gone back."""
        return self._reserve is None or self._reserve.shrink(blocks)

    def move_blocks(self, sources: Ints, destinations: Ints) -> None:
        """Copy whole blocks of all layers. No destination may be given twice, or be a source."""
        assert self._reserve is not None, "a pool that keeps its size moves nothing"
        self._reserve.move_blocks(sources, destinations)

    def _prepare(self, work: Pass) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Plan]:
        assert isinstance(work.lanes, Lanes)
        tokens, positions, slots = work.tokens, work.positions, work.slots
        missing = padded(work.size, self._tiling.rows) - work.size
        if missing:
            tokens, positions = np.pad(tokens, (0, missing)), np.pad(positions, (0, missing))
            slots = np.pad(slots, (0, missing), constant_values=self.padding_slot)
        plan = plan_lanes(
            work.lanes,
            len(tokens),
            shape=self.shape,
            block_size=self.block_size,
            tiling=self._tiling,
            dtype=self.torch_dtype,
            device=self.torch_device,
        )
        move = (torch.from_numpy(np.ascontiguousarray(a)).to(self.torch_device) for a in (tokens, positions))
        return *move, torch.from_numpy(slots.astype(np.int64)).to(self.torch_device), plan  # type: ignore[return-value]

    @property
    def _longest(self) -> int:
        """Return how many tokens a text has at most."""
        return min(self.max_positions, self.blocks * self.block_size)

    def _make_invariant(self) -> bool:
        """Take products' shapes under which no token's result depends on the rest of its batch, if there are any."""
        modules, matrices = self._modules, self._matrices()
        sizes = sorted((matrix.width, matrix.count) for matrix in matrices)
        about = modules.described(), self.shape, self.dtype, self.device, sizes
        limits = self._longest, self.block_size, self.max_pass_tokens
        tiling = verdict(kept_folder("numerics"), here(*about, *limits), lambda: self._find_tiling(matrices), Tiling)
        self._tiling = tiling or Tiling()
        return tiling is not None

    @torch.inference_mode()
    def _find_tiling(self, matrices: list[Matrix]) -> Tiling | None:
        dtype, device = self.torch_dtype, self.torch_device
        for tiling in attention_tilings(self.shape, self.block_size):
            same = attention_agreement(self.shape, tiling, self._longest, dtype, device, block_size=self.block_size)
            if same > 0:
                room = Room(
                    self.vocab_size, self.max_positions, self.blocks, self.block_size, self.max_pass_tokens, tiling.span
                )
                for rows in linear_granules(matrices, self.max_pass_tokens, dtype, device):
                    self._tiling = replace(tiling, rows=rows)
                    if passes_agree(self.forward, room):
                        return self._tiling
                break
        return None

    def _matrices(self) -> list[Matrix]:
        """Return one map of each shape that passes go through: the linear ones and the activation between them."""
        maps = [
            Matrix(module, module.in_features, module.weight.numel())
            for module in self._modules.module.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        widest = max(matrix.width for matrix in maps)  # as a rule what goes through the activation
        maps += [Matrix(act, widest, _NO_WEIGHTS) for act in self._activations]
        return list({(matrix.width, matrix.count): matrix for matrix in maps}.values())
