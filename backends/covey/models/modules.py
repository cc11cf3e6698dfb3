"""A Hugging Face language model computed by its own modules, with attention replaced by ours (transformers'
`AttentionInterface`), and a check that the results agree.

This module knows no passes, lasting pools or ways to make passes fast: `PagedModel` and `DeviceModel` build on it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from covey.contracts.errors import UnsupportedModel
from covey.contracts.types import Ints
from covey.models import loading, refusals
from covey.models.attention import Plan, Shape, Tiling, attend, plan_lanes
from covey.models.lanes import Lanes
from covey.models.rows import by_rows

_ATTENTION = "covey_paged"
ACTIVATIONS = (
    "act_fn",
    "act",
    "activation_fn",
    "activation",
    "gelu_impl",
)  # the names of activations in transformers' feed-forward modules

_MACHINE = ("CUDA error", "DefaultCPUAllocator")  # in the messages of RuntimeErrors that are no fault of a model


class _ByRows(torch.nn.Module):
    """An activation, computed a few rows at a time."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return by_rows(self.act, x)


@dataclass(frozen=True, slots=True)
class AttentionSetting:
    """The arguments with which a layer calls its attention."""

    scale: float
    window: int
    softcap: float


@dataclass(slots=True)
class Run:
    """The part of a pass that the attention function needs."""

    plan: Plan
    slots: torch.Tensor
    pools: list[torch.Tensor]
    settings: dict[int, AttentionSetting] = field(default_factory=dict)


_RUN: ContextVar[Run] = ContextVar("run")  # because not every family passes arguments on to its attention


def _paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """Implement transformers' attention function: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out. The mask
    gives a layer's window, because not all families pass it here. Raises UnsupportedModel for other attention."""
    window = attention_mask if isinstance(attention_mask, int) else 0
    if (attention_mask is not None and not window) or rest.get("is_causal") is False:
        raise UnsupportedModel(f"{type(module).__name__}: its own mask is not supported: attention must be causal")
    run = _RUN.get()
    shape = run.plan.shape
    due = shape.heads, *2 * (shape.kv_heads, shape.head_dim)
    if (query.shape[1], *key.shape[1::2], *value.shape[1::2]) != due:
        raise UnsupportedModel(f"{type(module).__name__}: heads of several shapes are not supported: one pool")
    layer = int(module.layer_idx)
    scale = float(scaling if scaling is not None else shape.head_dim**-0.5)
    run.settings[layer] = setting = AttentionSetting(scale, window, float(softcap or 0.0))
    pool = run.pools[layer]
    pool.index_copy_(1, run.slots, torch.cat((key[0], value[0])))
    values = attend(run.plan, query[0].transpose(0, 1), pool, setting.scale, setting.window, setting.softcap, s_aux)
    return values.view(1, -1, shape.heads, shape.head_dim), None


def _window(*_: object, local_size: int | None = None, **__: object) -> int | None:
    """Implement transformers' mask function: return a window in place of a mask, as lanes give all else a query
    sees."""
    return local_size


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(_ATTENTION, _paged_attention)
    AttentionMaskInterface.register(_ATTENTION, _window)


@dataclass(frozen=True, slots=True)
class Examined:
    """The settings with which a model calls its attention, by layer, and a text's logits under its own attention."""

    settings: list[AttentionSetting]
    logits: torch.Tensor


class Modules:
    """A model's modules and facts. Refuses models that are not supported."""

    def __init__(
        self,
        folder: Path,
        config: Any,
        module: Any,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Wrap a module whose attention is ours (see `read` and `of`)."""
        self.folder, self.config = folder, config
        self.dtype, self.device = dtype, device
        self.module = module
        with self._refusing():
            self.shape = shape_of(config)
            self.layers = int(config.num_hidden_layers)
            self.vocab_size = int(config.vocab_size)
        self.end_ids = loading.find_end_ids(self.folder, self.config)
        self.max_positions = loading.find_max_positions(self.config)

    @classmethod
    def read(cls, folder: str | Path, *, dtype: str, device: str) -> Modules:
        """Return the modules of the model in a folder. Raises SettingError or UnsupportedModel if it is refused."""
        path = Path(folder)
        config = loading.read_config(path)
        where = loading.choose_device(device)
        kind = loading.choose_dtype(dtype, where)
        _register()
        return cls(path, config, loading.load_module(path, config, kind, where, _ATTENTION), kind, where)

    @classmethod
    def of(cls, module: Any, name: str) -> Modules:
        """Wrap a module that is already on its device, in its dtype, and has no folder. Its runtime may take it apart.
        Raises UnsupportedModel as `read` does."""
        refusals.by_config(Path(name), lambda key: getattr(module.config, key, None))
        _register()
        module.set_attn_implementation(_ATTENTION)
        return cls(Path(name), module.config, module, module.dtype, module.device)

    def described(self) -> dict[str, Any]:
        """Return the configuration as plain data."""
        settings: dict[str, Any] = json.loads(self.config.to_json_string(use_diff=False))
        return settings

    def hidden(
        self, tokens: torch.Tensor, positions: torch.Tensor, run: Run, tapped: Sequence[int] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the last hidden states, and what the `tapped` layers read."""
        found = self._output(tokens, positions, run, every=bool(tapped))
        return found.last_hidden_state[0], [found.hidden_states[layer][0] for layer in tapped]

    def _output(self, tokens: torch.Tensor, positions: torch.Tensor, run: Run, every: bool = False) -> Any:
        """Return transformers' output for a pass, with the states before each layer if it has `every` state."""
        before = _RUN.set(run)
        try:
            return self.module.base_model(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, output_hidden_states=every
            )
        finally:
            _RUN.reset(before)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits in float32 (float64 for a float64 model)."""
        logits: torch.Tensor = self.module.get_output_embeddings()(hidden)
        logits = scaled(self.config, logits)
        return logits if logits.dtype == torch.float64 else logits.float()

    def activate_by_rows(self) -> list[Callable[[torch.Tensor], torch.Tensor]]:
        """Make activations give a row the same bits in any pass. Return them."""
        activations: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        for part in list(self.module.modules()):
            for name in ACTIVATIONS:
                act = getattr(part, name, None)
                if callable(act) and not isinstance(act, _ByRows):
                    setattr(part, name, _ByRows(act))
                    activations[repr(act)] = getattr(part, name)
        return list(activations.values())

    def cut(self, vocab_size: int) -> None:
        """Drop the outputs of all tokens from this id on."""
        self.vocab_size, head = vocab_size, self.module.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.data[:vocab_size], requires_grad=False)
        if head.bias is not None:
            head.bias = torch.nn.Parameter(head.bias.data[:vocab_size], requires_grad=False)

    def trial(self, count: int) -> Ints:
        """Return `count` tokens from across the vocabulary."""
        return ((np.arange(count) * 7919 + 11) % self.vocab_size).astype(np.int32)

    @torch.inference_mode()
    def examine(self, text: Ints) -> Examined:
        """Compare paged attention with transformers' own over a text. If logits or a layer's states differ, raise
        UnsupportedModel with the first part that differs. A window longer than the text is shortened for a second
        comparison."""
        logits, settings = self._compare(text)
        whole = getattr(self.config, "sliding_window", None)
        if isinstance(whole, int) and whole > len(text) // 4:
            self.config.sliding_window = max(1, len(text) // 4)
            try:
                self._compare(text)
            finally:
                self.config.sliding_window = whole
        return Examined(settings, logits)

    def _compare(self, text: Ints) -> tuple[torch.Tensor, list[AttentionSetting]]:
        """Return the logits of transformers' own pass over a text, and the settings of attention. Ours reads the text
        in thirds, so state that a model would keep in addition to keys and values is noticed."""
        count, shape, block = len(text), self.shape, 16
        size = -(-count // block) * block
        pools = [
            torch.zeros(2 * shape.kv_heads, size, shape.head_dim, dtype=self.dtype, device=self.device)
            for _ in range(self.layers)
        ]
        table = np.arange(size // block, dtype=np.int32)[None]
        tokens = torch.from_numpy(text).to(self.device)
        at = torch.arange(count, device=self.device)
        parts, settings = [], dict[int, AttentionSetting]()
        for start, stop in itertools.pairwise(sorted({0, count // 3, 2 * count // 3, count})):
            lanes = Lanes(np.array([0, stop - start], np.int32), np.array([stop], np.int32), table)
            plan = plan_lanes(
                lanes,
                stop - start,
                shape=shape,
                block_size=block,
                tiling=Tiling(),
                dtype=self.dtype,
                device=self.device,
            )
            run = Run(plan, at[start:stop], pools)
            with self._refusing():
                parts.append(self._output(tokens[start:stop], at[start:stop], run, every=True))
            settings = run.settings
        if without := set(range(self.layers)) - settings.keys():
            raise UnsupportedModel(
                f"{self.folder}: layer {min(without)} without attention is not supported: state must be keys and values"
            )
        with self._refusing(), self._own_attention():
            own = self.module(input_ids=tokens[None], position_ids=at[None], use_cache=False, output_hidden_states=True)
        with self._refusing("its head cannot be computed from its last state"):
            logits = self.logits(torch.cat([part.last_hidden_state[0] for part in parts]))
        with self._refusing("its states cannot be compared"):
            states = [torch.cat(state, 1) for state in zip(*(part.hidden_states for part in parts), strict=True)]
            where = _differing(states, own.hidden_states, logits, own.logits[0], self.dtype)
        if where:
            raise UnsupportedModel(
                f"{self.folder}: {type(self.module).__name__} is not supported: {where} differs between paged "
                "attention and transformers' own; serve a family of docs/models.md"
            )
        return own.logits[0], [settings[layer] for layer in range(self.layers)]

    @contextlib.contextmanager
    def _own_attention(self) -> Iterator[None]:
        """Let transformers compute attention until the context ends."""
        try:
            self.module.set_attn_implementation("eager")
            yield
        finally:
            self.module.set_attn_implementation(_ATTENTION)

    @contextlib.contextmanager
    def _refusing(self, why: str = "its attention cannot be replaced") -> Iterator[None]:
        """Raise UnsupportedModel, by the model's name and with `why`, for errors of its modules. Errors of the machine
        pass unchanged."""
        try:
            with loading.quiet():
                yield
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{self.folder}: {error}") from error
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if _is_of_machine(error):
                raise
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise UnsupportedModel(
                f"{self.folder}: {type(self.module).__name__} is not supported: {why} ({said}); serve a family of "
                "docs/models.md"
            ) from error


def _differing(
    states: Sequence[torch.Tensor],
    own_states: Sequence[torch.Tensor],
    logits: torch.Tensor,
    own_logits: torch.Tensor,
    dtype: torch.dtype,
) -> str:
    """Return the first part of a model whose results differ from transformers' own, "" if none does. Both compute an
    embedding in the same way, so it may differ least. Errors grow from layer to layer, so a tenth of the allowed error
    tells the layer where they begin."""
    pairs = list(zip(states, own_states, strict=True))
    embedded = close(*pairs[0], dtype, 0.02)
    if embedded and close(logits, own_logits, dtype) and all(close(*pair, dtype) for pair in pairs):
        return ""
    same = [embedded, *(close(*pair, dtype, 0.1) for pair in pairs[1:])]
    first = same.index(False) if False in same else len(same)
    return "its head" if first == len(same) else f"layer {first - 1}" if first else "its embedding"


def _is_of_machine(error: Exception) -> bool:
    """Return whether memory ran out or a device failed: the model may be served elsewhere. Some of torch's libraries
    raise a plain RuntimeError for it."""
    if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _MACHINE)


Source: TypeAlias = "str | Path | Modules"
"""A folder with a model, or its modules."""


def modules_of(source: Source, *, dtype: str, device: str, vocab_size: int = 0) -> Modules:
    """Return modules unchanged, or those of a folder in this dtype on this device. With `vocab_size`, outputs from
    that id on are cut off."""
    modules = source if isinstance(source, Modules) else Modules.read(source, dtype=dtype, device=device)
    if 0 < vocab_size < modules.vocab_size:
        modules.cut(vocab_size)
    return modules


def shape_of(config: Any) -> Shape:
    """Return the shape of one layer's attention."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return Shape(heads, kv_heads, int(getattr(config, "head_dim", None) or config.hidden_size // heads))


def scaled(config: Any, logits: torch.Tensor) -> torch.Tensor:
    """Return a head's results scaled and capped as configured (Granite and Cohere name the scale differently)."""
    scaling, scale = getattr(config, "logits_scaling", None), getattr(config, "logit_scale", None)
    cap = getattr(config, "final_logit_softcapping", None)
    if scaling is not None:
        logits = logits / scaling
    if scale is not None:
        logits = logits * scale
    return logits if cap is None else by_rows(torch.tanh, logits / cap) * cap


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, share: float = 1.0) -> bool:
    """Return whether two results agree up to `share` of the rounding of the dtype (norms and softmax are float32 at
    best)."""
    allowed = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}[dtype]
    actual, expected = actual.double(), expected.double()
    never = actual.isneginf() & expected.isneginf()  # tokens that a head does not know
    actual, expected = actual.masked_fill(never, 0.0), expected.masked_fill(never, 0.0)
    error = (actual - expected).norm() / expected.norm().clamp_min(1e-30)
    return bool(error <= allowed * share)
