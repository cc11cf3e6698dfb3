"""A Hugging Face language model over a paged pool of keys and values: packed tokens in, logits out.

Knows nothing of requests, block ownership or sampling: the caller says which slots a pass writes and reads. The
modules' own code runs with attention replaced (transformers' `AttentionInterface`); for the families in `fuse.py` its
shorter pass takes over, after it was seen to give the same.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covey.errors import SettingError, UnsupportedModel
from covey.runtime import loading
from covey.runtime.attention import Plan, Shape, Tiling, attend, plan_lanes
from covey.runtime.fuse import FAMILIES, AttentionSetting, FusedDecoder
from covey.runtime.lanes import Lanes, Pass
from covey.runtime.numerics import Matrix, Room, attention_agrees, passes_agree, tilings
from covey.runtime.product import padded
from covey.types import NO_INTS, Ints

_ATTENTION = "covey_paged"
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """What the attention function needs of the pass it is called in."""

    plan: Plan
    slots: torch.Tensor
    pools: list[torch.Tensor]
    settings: dict[int, AttentionSetting] = field(default_factory=dict)


def _paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    covey_run: _Run | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out."""
    if covey_run is None:
        raise UnsupportedModel(f"{type(module).__name__} is not supported: it passes no arguments to its attention")
    if rest.get("s_aux") is not None:
        raise UnsupportedModel(f"{type(module).__name__}: attention sinks are not supported: softmax has no sink here")
    if attention_mask is not None or rest.get("is_causal") is False:
        raise UnsupportedModel(f"{type(module).__name__}: a mask of its own is not supported: attention is causal")
    run, shape = covey_run, covey_run.plan.shape
    if query.shape[1] != shape.heads or key.shape[1::2] != value.shape[1::2]:
        raise UnsupportedModel(f"{type(module).__name__}: keys and values of two shapes are not supported: one pool")
    if key.shape[1] != shape.kv_heads or key.shape[3] != shape.head_dim:
        raise UnsupportedModel(f"{type(module).__name__}: heads that differ by layer are not supported: one pool")
    layer = int(module.layer_idx)
    scale = float(scaling if scaling is not None else shape.head_dim**-0.5)
    setting = AttentionSetting(scale, int(sliding_window or 0), float(softcap or 0.0))
    run.settings[layer] = setting
    pool = run.pools[layer]
    pool.index_copy_(1, run.slots, torch.cat((key[0], value[0])))
    found = attend(run.plan, query[0].transpose(0, 1), pool, setting.scale, setting.window, setting.softcap)
    return found.view(1, -1, shape.heads, shape.head_dim), None


def _no_mask(*_: object, **__: object) -> None:
    """transformers' mask interface: lanes say what a query sees."""


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(_ATTENTION, _paged_attention)
    AttentionMaskInterface.register(_ATTENTION, _no_mask)


class PagedModel:
    """One model and its pool of `blocks` blocks of `block_size` slots; not safe to call from two threads at once."""

    def __init__(
        self,
        folder: str | Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        blocks: int,
        block_size: int = 16,
        numerics: str = "auto",
        max_pass_tokens: int = 512,
    ) -> None:
        if numerics not in ("auto", "invariant", "fast"):
            raise SettingError(f"numerics: got {numerics!r}, allowed: auto, invariant, fast")
        for name, value in (("blocks", blocks), ("block_size", block_size), ("max_pass_tokens", max_pass_tokens)):
            if value < 1:
                raise SettingError(f"{name}: got {value}, allowed: 1 or more")
        folder = Path(folder)
        config = loading.read_config(folder)
        loading.check_config(folder, config)
        self.torch_device = loading.choose_device(device)
        self.torch_dtype = loading.choose_dtype(dtype, self.torch_device)
        _register()
        self._module: Any = loading.load_module(folder, config, self.torch_dtype, self.torch_device, _ATTENTION)
        self.shape = _shape(config)
        self.end_ids = loading.find_end_ids(folder, config)
        self.vocab_size = int(config.vocab_size)
        self.max_positions = loading.find_max_positions(config)
        self.blocks, self.block_size = blocks, block_size
        self.max_pass_tokens = max_pass_tokens
        self.numerics = "fast"
        self._tiling = Tiling()
        self._layers = int(config.num_hidden_layers)
        shape = (self._layers, 2 * self.shape.kv_heads, (blocks + 1) * block_size, self.shape.head_dim)
        self._pool = torch.zeros(
            shape, dtype=self.torch_dtype, device=self.torch_device
        )  # the last block takes padding's keys
        self.pools = list(self._pool.unbind(0))
        self._fused: FusedDecoder | None = None
        self._settle(folder)
        if numerics != "fast" and self._make_invariant():
            self.numerics = "invariant"
        elif numerics == "invariant":
            raise SettingError(
                f"numerics: invariant is not to be had for {folder} in {self.dtype} on this {self.device}; "
                "use auto or fast, or dtype bfloat16 on a CPU with BF16 instructions"
            )
        self._pool.zero_()

    @property
    def dtype(self) -> str:
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        return str(self.torch_device)

    @property
    def bytes_per_block(self) -> int:
        return self._pool[:, :, : self.block_size].numel() * self._pool.element_size()

    @property
    def fused(self) -> bool:
        """Whether the short pass of `fuse.py` is in use."""
        return self._fused is not None

    @torch.inference_mode()
    def forward(self, work: Pass) -> torch.Tensor:
        """Logits [len(out), vocab] in float32 (float64 for a float64 model); writes the tokens' keys and values."""
        if work.size > self.max_pass_tokens:
            raise ValueError(f"a pass of {work.size} tokens; this model was built for {self.max_pass_tokens}")
        tokens, positions, slots, plan = self._prepare(work)
        if self._fused is not None:
            hidden = self._fused.forward(tokens, positions, slots, plan)
        else:
            hidden = self._hidden(tokens, positions, _Run(plan, slots, self.pools))
        count = len(work.out)
        wanted = np.resize(work.out, padded(count, self._tiling.rows)) if count else work.out
        return self._logits(hidden.index_select(0, torch.from_numpy(wanted).to(self.torch_device)))[:count]

    @torch.inference_mode()
    def copy_slots(self, source: Ints, destination: Ints) -> None:
        """Copies keys and values of all layers between slots; all are read before any is written."""
        moved = self._pool.index_select(2, torch.from_numpy(source).to(self.torch_device))
        self._pool.index_copy_(2, torch.from_numpy(destination.astype(np.int64)).to(self.torch_device), moved)

    @torch.inference_mode()
    def clear_slots(self, slots: Ints) -> None:
        """Sets keys and values of all layers to zero."""
        self._pool.index_fill_(2, torch.from_numpy(slots.astype(np.int64)).to(self.torch_device), 0)

    def _prepare(self, work: Pass) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Plan]:
        tokens, positions, slots = work.tokens, work.positions, work.slots
        missing = padded(work.size, self._tiling.rows) - work.size
        if missing:
            tokens, positions = np.pad(tokens, (0, missing)), np.pad(positions, (0, missing))
            slots = np.pad(slots, (0, missing), constant_values=self.blocks * self.block_size)
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

    def _hidden(self, tokens: torch.Tensor, positions: torch.Tensor, run: _Run) -> torch.Tensor:
        core = self._module.base_model
        found = core(input_ids=tokens[None], position_ids=positions[None], use_cache=False, covey_run=run)
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self._fused.head if self._fused is not None else self._module.get_output_embeddings()
        logits: torch.Tensor = head(hidden)
        cap = getattr(self._module.config, "final_logit_softcapping", None)
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits if logits.dtype == torch.float64 else logits.float()

    @torch.inference_mode()
    def _settle(self, folder: Path) -> None:
        """Warm up, compare with the modules' own attention, and take the short pass where it gives the same."""
        count = min(48, self.max_positions, self.max_pass_tokens, self.blocks * self.block_size)
        work = self._trial(count)
        tokens, positions, slots, plan = self._prepare(work)
        run = _Run(plan, slots, self.pools)
        try:
            with loading.quiet():
                hidden = self._hidden(tokens, positions, run)[:count]
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{folder}: {error}") from error
        if len(run.settings) != self._layers:
            raise UnsupportedModel(
                f"{folder}: layers without attention are not supported: state must be keys and values"
            )
        with loading.quiet():
            self._module.set_attn_implementation("eager")
            alone = {"input_ids": tokens[None, :count], "position_ids": positions[None, :count]}  # without padding
            own = self._module(**alone, use_cache=False).logits[0]
            self._module.set_attn_implementation(_ATTENTION)
        if not _close(self._logits(hidden), own, self.torch_dtype):
            raise UnsupportedModel(
                f"{folder}: {type(self._module).__name__} is not supported: paged attention differs from its own"
            )
        if self._module.config.model_type not in FAMILIES:
            _LOG.info("%s: running the modules of transformers (%s)", folder, self._module.config.model_type)
            return
        settings = [run.settings[i] for i in range(self._layers)]
        try:
            fused = FusedDecoder(self._module, self.shape, settings, self.pools, self.max_positions)
            if _close(fused.forward(tokens, positions, slots, plan)[:count], hidden, self.torch_dtype):
                self._fused = fused
                self._module.model.layers = torch.nn.ModuleList()  # their weights live on in the products
        except (AttributeError, RuntimeError) as error:
            _LOG.info("%s: running the modules of transformers (%s)", folder, error)

    @torch.inference_mode()
    def _make_invariant(self) -> bool:
        """Find products' shapes under which no token's result depends on its company."""
        room = Room(self.vocab_size, self.max_positions, self.blocks, self.block_size, self.max_pass_tokens)
        for tiling in tilings(self._matrices(), self.shape, self.max_pass_tokens, self.torch_dtype, self.torch_device):
            if attention_agrees(self.shape, tiling, self.max_positions, self.torch_dtype, self.torch_device):
                self._tiling = tiling
                if passes_agree(self.forward, room):
                    return True
        self._tiling = Tiling()
        return False

    def _matrices(self) -> list[Matrix]:
        """One of each shape of the linear maps that passes go through."""
        if self._fused is not None:
            found = [Matrix(product, product.width, product.count) for product in self._fused.products()]
        else:
            found = [
                Matrix(module, module.in_features, module.weight.numel())
                for module in self._module.modules()
                if isinstance(module, torch.nn.Linear)
            ]
        return list({(matrix.width, matrix.count): matrix for matrix in found}.values())

    def _trial(self, count: int) -> Pass:
        """One chain of `count` tokens of all over the vocabulary."""
        at = np.arange(count, dtype=np.int32)
        tokens = ((at.astype(np.int64) * 7919 + 11) % self.vocab_size).astype(np.int32)
        blocks = np.arange(-(-count // self.block_size), dtype=np.int32)[None]
        lanes = Lanes(np.array([0, count], np.int32), np.array([count], np.int32), blocks, None, None, NO_INTS)
        return Pass(tokens, at, at, lanes, at)


def _shape(config: Any) -> Shape:
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Shape(heads, kv_heads, head_dim)


def _close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Equal up to what the data type rounds away (transformers takes norms and softmax in float32 at best)."""
    allowed = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}[dtype]
    found, expected = found.double(), expected.double()
    error = (found - expected).norm() / expected.norm().clamp_min(1e-30)
    return bool(error <= allowed)
