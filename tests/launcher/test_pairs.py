"""The profiles of well-known pairs, with tiny random models of the same configurations: the launcher accepts them, and
drafts change no text."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.profile import GENERAL, HEAD, Profile
from covey.contracts.types import Sampling
from covey.drafters import load_drafter
from covey.launcher import Options, command, installation, preflight
from covey.runtimes import budget
from covey.target.opening import load_target
from tests.engines import answers
from tests.fakes import request
from tests.models.tiny_models import build
from tests.static_planner import StaticPlanner

WORDS = 300  # of the tokenizer; outputs are padded
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
LLAMA3 |= {"original_max_position_embeddings": 64}
LLAMA = {"max_position_embeddings": 512, "vocab_size": 320, "rms_norm_eps": 1e-5, "head_dim": 8}
QWEN = {"max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # family; what is the target's own, and the drafter's
    "llama3.1-8b": (
        "llama",
        LLAMA | {"rope_parameters": LLAMA3 | {"factor": 8.0}, "tie_word_embeddings": False},
        LLAMA | {"rope_parameters": LLAMA3 | {"factor": 32.0}, "tie_word_embeddings": True},
    ),
    "qwen2.5-7b": (
        "qwen2",
        QWEN | {"vocab_size": 320, "tie_word_embeddings": False},
        QWEN | {"vocab_size": 304, "tie_word_embeddings": True, "num_attention_heads": 8},
    ),
    "qwen3-8b": (
        "qwen3",
        QWEN | {"vocab_size": 320, "tie_word_embeddings": False, "head_dim": 8},
        QWEN | {"vocab_size": 320, "tie_word_embeddings": True, "head_dim": 16},
    ),
}
GPU = budget.Gpu(80 << 30, bfloat16=True)


def made(folder: Path, family: str, own: dict[str, Any], layers: int, seed: int) -> Path:
    build(folder, family, torch.bfloat16, seed, **SIZES | {"num_hidden_layers": layers} | own)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(alphabet[number], alphabet[number]) for number in range(33, 33 + WORDS - len(alphabet))]
    known = {text: token for token, text in enumerate([*alphabet, *(one + two for one, two in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def made_head(folder: Path, target: Path, **changes: Any) -> Path:
    """A head in the form of the first published ones: pickled, with half of the tokens, and LlamaForCausalLM."""
    config = json.loads((target / "config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    dim = width // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    read = {f"self_attn.{name}_proj": (rows, 2 * width) for name, rows in (("q", query), ("k", key), ("v", key))}
    fed = {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
    norms = dict.fromkeys(("input_layernorm", "hidden_norm", "post_attention_layernorm"), (width,))
    layer = {**read, "self_attn.o_proj": (width, query), **fed, **norms}
    shapes = {f"midlayer.{name}": shape for name, shape in layer.items()}
    shapes |= {"fc": (width, 3 * width), "norm": (width,), "lm_head": (160, width)}
    torch.manual_seed(3)
    weights = {f"{name}.weight": 0.3 * torch.randn(shape, dtype=torch.float16) for name, shape in shapes.items()}
    weights |= {"d2t": torch.arange(160), "t2d": torch.tensor([True, False] * 160)}
    folder.mkdir()
    torch.save(weights, folder / "pytorch_model.bin")
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    said = {key: config[key] for key in keys} | {"draft_vocab_size": 160, "num_hidden_layers": 1, "bias": False}
    said |= {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 128}
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]} | said | changes))
    return folder


def accepted(options: Options) -> Profile:
    """Return the deployment after all that the launcher asks before it loads anything."""
    wanted = preflight.models(options)
    preflight.weights(options, wanted)
    misfits = preflight.left_out(options, wanted)
    assert misfits.keys() <= {"draft_code", "draft_general"} - {options.drafter_entry()}, "only the test pair's own"
    assert preflight.memory(options, tuple(name for name in wanted if name not in misfits)) > 1024
    return options.deployment()


def on_cpu(chosen: Profile, runtime: str) -> Profile:
    dtype = "auto" if runtime == "auto" else "float64"
    return replace(
        chosen,
        target=replace(chosen.target, device="cpu", dtype=dtype, kv_blocks=64, threads=1, runtime=runtime),
        drafter=replace(chosen.drafter, device="cpu", dtype=dtype, kv_blocks=64),
    )


def texts(
    options: Options, kind: str, name: str, runtime: str = "auto"
) -> tuple[dict[int, list[int]], dict[int, list[int]], int]:
    """Return what the pair writes without drafts and with them, and how many drafts were accepted."""
    chosen, folder = on_cpu(options.deployment(), runtime), Path(options.model)
    target = load_target(folder, chosen, name="target")
    drafter = load_drafter(kind, options.drafter, folder, chosen, name=name)
    found = []
    for drafters in ({}, {name: drafter}):
        asked = []
        for key in range(6):
            prompt = np.random.default_rng(key).integers(2, WORDS, 9 + 20 * key)
            asked.append(request(key, prompt, 40, sampling=Sampling((key % 2) * 0.8, seed=key)))
        limits = {"token_budget": 256, "growth_tokens": 16, "block_size": 32}
        found.append(answers(target, asked, StaticPlanner(3, 1), drafters, **limits))
        target.check()
    return found[0].tokens, found[1].tokens, sum(each.drafted for each in found[1].ended.values())


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_accepted_on_a_gpu_and_drafts_change_no_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, own, other = PAIRS[name]
    target, drafter = made(tmp_path / "target", family, own, 2, 1), made(tmp_path / "drafter", family, other, 1, 2)
    options = Options(profile=name, model=str(target), drafter=str(drafter))
    with pytest.raises(SettingError, match=r"target\.device: got 'cuda', but torch sees no GPU here"):
        accepted(options)
    monkeypatch.setattr(budget, "gpu_seen_apart", lambda: GPU)
    parts: list[budget.Part] = []
    monkeypatch.setattr(budget, "tokens", lambda given, *_: (parts.extend(given), 1 << 16)[1])
    assert accepted(options).speculation.drafters[0] == GENERAL
    accepted(Options(model=str(target), drafter=str(drafter)))
    assert [part.device for part in parts] == [budget.GPU] * 4, "without a profile, too"
    plain, drafted, count = texts(options, "neural", GENERAL)
    assert drafted == plain
    assert count > 300


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-8b"])
def test_a_head_is_accepted_on_a_gpu_and_its_drafts_change_no_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, own, _ = PAIRS[name]
    target = made(tmp_path / "target", family, own, 8, 1)
    head = made_head(tmp_path / "head", target)
    options = Options(profile=name, model=str(target), drafter=str(head))
    monkeypatch.setattr(budget, "gpu_seen_apart", lambda: GPU)
    with pytest.raises(SettingError, match="convert it once") as refused:
        accepted(options)
    code = str(refused.value).partition('python -c "')[2].removesuffix('"')
    subprocess.run([sys.executable, "-c", code], check=True)
    chosen = accepted(options)
    assert (chosen.target.head, chosen.speculation.drafters[0]) == (HEAD, HEAD)
    with monkeypatch.context() as patch:
        for key, value in command.environment(options, installation.find(None)).items():
            patch.setenv(key, value)
        assert profile.from_environment() == replace(chosen, target=replace(chosen.target, folder=str(target)))
    for runtime in ("auto", "torch"):  # PyTorch is also what takes the kernels' place
        plain, drafted, count = texts(options, "head", HEAD, runtime)
        assert drafted == plain
        assert count > 300


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    target, other = (made(tmp_path / str(vocab), "llama", LLAMA | {"vocab_size": vocab}, 8, 1) for vocab in (320, 352))
    head = made_head(tmp_path / "head", other)
    save_file(torch.load(head / "pytorch_model.bin"), head / "model.safetensors")
    save_file(load_file(head / "model.safetensors") | {"d2t": torch.arange(160) + 180}, head / "model.safetensors")
    with pytest.raises(SettingError, match=r"draft_head: .*d2t names tokens twice, or beyond the 320 of the target"):
        accepted(Options(model=str(target), drafter=str(head)))
