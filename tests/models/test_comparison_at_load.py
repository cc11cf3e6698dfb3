"""At load, every family passes a comparison with transformers' own attention; what differs is refused by name."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import transformers

from covey.contracts.errors import UnsupportedModel
from covey.models import modules
from covey.models.loading import quiet
from covey.models.model import PagedModel
from covey.models.modules import Modules
from tests.models.tiny_models import FAMILIES, MORE


def in_memory(family: str, **changes: Any) -> Modules:
    """A model of the family; `changes` overwrite configuration keys."""
    name, settings = (FAMILIES | MORE)[family]
    return random(getattr(transformers, name)(**(settings | changes)))


def random(config: Any, dtype: torch.dtype = torch.float32) -> Modules:
    torch.manual_seed(0)
    with quiet(), torch.no_grad():
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for name, weight in module.requires_grad_(False).named_parameters():
            weight.copy_(torch.randn(weight.shape) * (1.5 * weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.2))
            if weight.dim() == 1 and not name.endswith("bias"):
                weight.add_(1.0)
    return Modules.of(module.to(dtype), "memory")


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_it_passes_the_comparison_at_load_which_names_a_layer_that_is_broken(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = in_memory(family)
    text = tiny.trial(48)
    tiny.examine(text)

    calls, attend = itertools.count(), modules.attend

    def broken(plan: Any, queries: torch.Tensor, *rest: Any) -> torch.Tensor:
        return attend(plan, queries * (4 if next(calls) % tiny.layers == 1 else 1), *rest)

    monkeypatch.setattr(modules, "attend", broken)
    with pytest.raises(UnsupportedModel, match=r"^memory: \w+ is not supported: layer 1 differs between"):
        tiny.examine(text)


def test_a_window_that_reaches_beyond_the_text_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = in_memory("mistral", sliding_window=200)
    assert tiny.examine(tiny.trial(48)).settings[0].window == 200
    attend = modules.attend
    monkeypatch.setattr(modules, "attend", lambda *given: attend(*given[:4], 0, *given[5:]))
    with pytest.raises(UnsupportedModel, match="layer 0 differs"):
        tiny.examine(tiny.trial(48))


_TINY = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_LATENT = {"kv_lora_rank": 8, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (transformers.DiffLlamaConfig(**_TINY), "layer 0 differs"),
        (transformers.Gemma3TextConfig(**_TINY, head_dim=8, use_bidirectional_attention=True), "layer 0 differs"),
        (transformers.FalconH1Config(**_TINY, mamba_d_ssm=32, mamba_n_heads=4), "layer type hybrid"),
        (transformers.BertConfig(**_TINY), "layer 0 differs"),
        (transformers.ElectraConfig(**_TINY, embedding_size=32, is_decoder=True), "its head differs"),
        (transformers.DeepseekV2Config(**_TINY, **_LATENT, first_k_dense_replace=2), "several shapes"),
        (transformers.Lfm2Config(**_TINY, full_attn_idxs=[0]), "layer type conv"),
        (transformers.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2), "layer type linear_attention"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_what_ours_does_not_compute_is_refused_whatever_the_family_is_called(config: Any, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        PagedModel(random(config), dtype="float32", device="cpu", blocks=16, numerics="fast")


_DECODER = {
    "vocab_size": 97,
    "d_model": 32,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
    "is_encoder_decoder": False,
    "is_decoder": True,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [transformers.PLBartConfig, transformers.BigBirdPegasusConfig])
def test_a_family_that_counts_positions_by_its_own_cache_is_refused(config: Any, dtype: torch.dtype) -> None:
    tiny = random(config(**_DECODER), dtype)
    with pytest.raises(UnsupportedModel, match="its embedding differs"):
        tiny.examine(tiny.trial(48))


def llama4(**changes: Any) -> Any:
    sizes = _TINY | {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2}
    return transformers.Llama4TextConfig(**sizes, layer_types=["full_attention"] * 2, **changes)


def test_attention_that_changes_beyond_the_compared_positions_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"^memory: .*\(attn_temperature_tuning\) is not supported: serve"):
        random(llama4())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (llama4(attn_temperature_tuning=False), "no attribute 'last_hidden_state'"),
        (transformers.ElectraConfig(**_TINY, embedding_size=16, is_decoder=True), "shapes cannot be"),
    ],
    ids=["llama4", "electra"],
)
def test_a_head_that_serving_cannot_compute_is_refused_by_name(config: Any, said: str) -> None:
    made = random(config)
    named = rf"^memory: \w+ is not supported: its head cannot be computed .*{said}.*; serve a family of docs/models.md$"
    with pytest.raises(UnsupportedModel, match=named):
        made.examine(made.trial(48))


def test_the_logits_that_are_compared_are_those_of_serving() -> None:
    """With this key the last of the hidden states has not passed the final norm; serving reads one that has."""
    tiny = in_memory("llama", tie_last_hidden_states=False)
    tiny.examine(tiny.trial(48))


def test_a_layer_that_differs_is_refused_even_if_logits_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, attend = in_memory("llama"), modules.attend
    tiny.module.model.norm.weight.zero_()
    monkeypatch.setattr(modules, "attend", lambda plan, queries, *rest: attend(plan, queries * 4, *rest))
    with pytest.raises(UnsupportedModel, match="layer 0 differs"):
        tiny.examine(tiny.trial(48))


@pytest.mark.parametrize(("error", "named"), [(5e-5, "layer 1"), (1e-3, "layer 0")])
def test_the_named_layer_is_where_errors_begin(error: float, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 1 computes something else. Layer 0 has an error of rounding, or one that later layers would hide."""
    tiny, attend, calls = in_memory("llama"), modules.attend, itertools.count()

    def broken(*given: Any) -> torch.Tensor:
        return attend(*given) * (1 + error, -1, 1)[next(calls) % 3]

    monkeypatch.setattr(modules, "attend", broken)
    with pytest.raises(UnsupportedModel, match=f"{named} differs"):
        tiny.examine(tiny.trial(48))


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        None,  # what PyTorch itself raises when the machine has no memory
    ],
)
def test_an_error_of_the_machine_does_not_condemn_the_model(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        if error:
            raise error
        torch.empty(1 << 60, dtype=torch.uint8)

    tiny = in_memory("llama")
    monkeypatch.setattr(modules, "attend", fail)
    with pytest.raises(RuntimeError, match=r"CUDA|DefaultCPUAllocator"):
        tiny.examine(tiny.trial(48))


def test_an_error_of_the_modules_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = in_memory("llama")
    monkeypatch.setattr(modules, "attend", lambda *_: torch.zeros(3).view(2, 2))
    with pytest.raises(UnsupportedModel, match=r"^memory: LlamaForCausalLM is not supported: .*RuntimeError"):
        tiny.examine(tiny.trial(48))


def test_paged_attention_and_the_window_are_back_after_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = in_memory("mistral", sliding_window=200)
    config, text = tiny.config, tiny.trial(48)
    tiny.examine(text)
    assert (config._attn_implementation, config.sliding_window) == (modules._ATTENTION, 200)

    forward = tiny.module.forward

    def failing(*given: Any, **named: Any) -> Any:
        if config.sliding_window == 12:
            raise torch.OutOfMemoryError
        return forward(*given, **named)

    monkeypatch.setattr(tiny.module, "forward", failing)
    with pytest.raises(torch.OutOfMemoryError):
        tiny.examine(text)
    assert (config._attn_implementation, config.sliding_window) == (modules._ATTENTION, 200)
