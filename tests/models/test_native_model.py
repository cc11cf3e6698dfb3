"""The native runtime writes what transformers writes, with the same bits in any company, over blocks of ours."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.models.lanes import Lanes, Pass, chain
from covey.models.loading import quiet
from covey.models.model import PagedModel
from covey.models.native import architecture, compiled, stages, tiles, words
from covey.models.native.model import NativeModel
from covey.process.private import KEPT_VARIABLE
from tests.models.bits import check, check_tree
from tests.models.tiny_models import Reader, build, generate, prompts

SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "untied": ("llama", {"tie_word_embeddings": False, "head_dim": 16}),
    "whole matrices of a head": ("llama", {"head_dim": 32}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "family": ("phi3", {}, "model type 'phi3'"),
    "window": ("mistral", {}, "a sliding window"),
    "unswitched": ("mistral", {"use_sliding_window": False}, "a sliding window"),
    "layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        "a sliding window",
    ),
    "activation": ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
    "key": ("llama", {"attn_logit_softcapping": 30.0}, "the key attn_logit_softcapping of config.json"),
}


def built(folder: Path, name: str, **changes: Any) -> Path:
    family, settings = SERVED[name]
    return build(folder, family, **(settings | changes))


def opened(folder: Path, dtype: str = "float32", **changes: Any) -> NativeModel:
    settings: dict[str, Any] = {"blocks": 40, "threads": 1, "numerics": "fast", "max_pass_tokens": 128}
    return NativeModel(folder, dtype=dtype, **(settings | changes))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", SERVED)
def test_logits_are_near_those_of_transformers(name: str, tmp_path: Path) -> None:
    """In bfloat16 as near as transformers' own. Also at positions beyond those that a rotary embedding is from."""
    folder = built(tmp_path, name)
    (row,) = prompts(np.random.default_rng(3), 97, 120)

    def logits(dtype: torch.dtype) -> npt.NDArray[np.float32]:
        with quiet(), torch.inference_mode():
            module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
            return module(torch.from_numpy(row.astype(np.int64))[None]).logits[0].float().numpy()

    exact, rounded = logits(torch.float32), logits(torch.bfloat16)
    assert np.abs(opened(folder).forward(chain(row, 32)) - exact).max() < 1e-4
    found = opened(folder, "bfloat16").forward(chain(row, 32))
    assert np.abs(found - exact).mean() < np.abs(rounded - exact).mean()
    small = opened(folder, "int8")
    assert small.weight_type == "int8"
    assert np.abs(small.forward(chain(row, 32)) - exact).mean() < 0.1 * np.abs(exact).mean()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 500.0},
        {"rope_scaling": {}},
    ],
)
def test_both_names_of_rotary_settings_mean_what_transformers_reads(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = built(tmp_path, "linear")
    edit(folder, **changes)
    rows = prompts(np.random.default_rng(1), 97, 30)
    expected = generate(folder, rows[0], 12, torch.float32)
    assert Reader(opened(folder), rows, room=12).greedy(12, 40, np.random.default_rng(2)) == [expected]


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_serve_is_refused_by_name(name: str, tmp_path: Path) -> None:
    family, settings, said = REFUSED[name]
    folder = build(tmp_path, family, **settings)
    with pytest.raises(UnsupportedModel, match=said):
        architecture.read(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rms_norm_eps": None}, "a config.json without rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rotary embedding 'longrope'"),
        ({"rope_parameters": {"mrope_section": [2, 1, 1]}}, "the key mrope_section of config.json"),
        ({"partial_rotary_factor": 0.5}, "a partial rotary embedding"),
        ({"num_attention_heads": 8}, "not of one model"),
        ({"intermediate_size": None}, "a config.json without intermediate_size"),
        (
            {"intermediate_size": 999},
            r"layers.0.mlp.gate_proj.weight of model.safetensors is \[\d+, \d+\], allowed by config.json: \[999, ",
        ),
        ({"num_hidden_layers": 9}, r"which lack model.layers.\d.input_layernorm.weight"),
        ({"attention_bias": True}, "which lack model.layers.0.self_attn.q_proj.bias"),
        ({"model_type": "qwen2"}, "which lack model.layers.0.self_attn.q_proj.bias"),
        ({"model_type": "qwen3"}, "which lack model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_configuration_that_says_something_else_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    edit(built(tmp_path, "llama"), **changes)
    with pytest.raises(SettingError, match=said):
        architecture.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("embed_tokens", torch.float32), ("layers.1.mlp.up_proj", torch.bfloat16), ("norm", torch.float16)],
)
@pytest.mark.parametrize("runtime", [NativeModel, PagedModel])
def test_weights_that_are_no_numbers_are_refused_by_the_tensor(
    name: str, runtime: type[Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    path = build(tmp_path, "llama", dtype) / "model.safetensors"
    weights = load_file(path)
    weights[f"model.{name}.weight"].view(-1)[-1] = math.nan if "mlp" in name else -math.inf
    save_file(weights, path, metadata={"format": "pt"})
    settings = {"threads": 1} if runtime is NativeModel else {"device": "cpu"}
    kind = "bfloat16" if dtype == torch.bfloat16 else "float32"
    with pytest.raises(SettingError, match=rf"model\.{name}\.weight has a number that is NaN or infinite"):
        runtime(tmp_path, dtype=kind, blocks=4, numerics="fast", **settings)


def test_weights_that_the_family_does_not_add_are_not_added(tmp_path: Path) -> None:
    edit(build(tmp_path, "qwen2"), model_type="llama")
    with pytest.raises(
        UnsupportedModel, match=r"which have model.layers.\d.self_attn.\w_proj.bias: copy both from one"
    ):
        architecture.read(tmp_path)


def test_types_that_it_does_not_compute_in_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="dtype: got 'float64', the native runtime computes in: bfloat16,"):
        opened(built(tmp_path, "llama"), "float64")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "bfloat16") for name in SERVED]
    + [("llama", "float32"), *((name, "int8") for name in ("llama", "biases", "qwen3"))],
)
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_token_has_the_same_bits_in_any_company(name: str, dtype: str, threads: int, tmp_path: Path) -> None:
    model = opened(built(tmp_path, name), dtype, threads=threads, numerics="auto", blocks=90)
    if model.numerics != "invariant":
        pytest.skip(f"{dtype} is not invariant on this machine")
    rows = prompts(np.random.default_rng(6), 97, 17, 45, 5, 70)
    check(model, rows, 12, 6)
    check_tree(model, rows[0], 6)
    check_tree(model, prompts(np.random.default_rng(7), 97, 92)[0], 7)  # paths across two blocks


def test_one_and_two_threads_give_the_same_bits(tmp_path: Path) -> None:
    folder = built(tmp_path, "llama")
    row = chain(prompts(np.random.default_rng(2), 97, 60)[0], 32)
    one, two = (opened(folder, "bfloat16", threads=threads, numerics="auto") for threads in (1, 2))
    if {one.numerics, two.numerics} == {"invariant"}:
        assert np.array_equal(one.forward(row), two.forward(row))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_what_is_no_number_stays_with_the_row_that_read_it(dtype: str, tmp_path: Path) -> None:
    """Neither another row of the pass sees it, nor one whose block holds it behind its last key."""
    model = opened(built(tmp_path, "llama"), dtype)
    rows = prompts(np.random.default_rng(4), 97, 40, 41)
    reader = Reader(model, rows)
    reader.read([(0, 0, 39), (1, 0, 40)])
    last = [(0, 39, 40), (1, 40, 41)]
    whole, expected = (each.clone() for each in reader.read(last))
    assert whole.isfinite().all()
    nothing = np.nan if dtype == "float32" else 0x7FC0
    for block, first in ((reader.tables[0][0], 3), (reader.tables[1][1], 9)):  # the second has its last key at 8
        model.pool._keys[:, block, :, :, first:] = nothing
        model.pool.values[:, block, :, first:] = nothing
    damaged, other = reader.read(last)
    assert damaged.isnan().all()
    assert other.equal(expected)


def test_parts_of_arrays_have_nothing_compiled(tmp_path: Path) -> None:
    """Compiling takes seconds, in which nobody is served."""
    model = opened(built(tmp_path, "llama"))
    work = chain(prompts(np.random.default_rng(2), 97, 40)[0], 32)
    expected, compiled = model.forward(work).copy(), len(stages.run.signatures)
    assert isinstance(work.lanes, Lanes)

    def part(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return np.repeat(array, 2, axis=-1)[..., ::2]

    lanes = Lanes(*(part(each) for each in (work.lanes.offsets, work.lanes.lengths, work.lanes.tables)))
    found = model.forward(Pass(part(work.tokens), part(work.positions), part(work.slots), lanes, part(work.out)))
    assert np.array_equal(found, expected)
    assert len(stages.run.signatures) == compiled


@pytest.mark.parametrize("runtime", [NativeModel, PagedModel])
def test_copied_slots_carry_the_row_and_cleared_ones_nothing(runtime: type[Any], tmp_path: Path) -> None:
    settings = {"threads": 1} if runtime is NativeModel else {"device": "cpu", "block_size": 32}
    model = runtime(built(tmp_path, "llama"), dtype="float32", blocks=40, numerics="fast", **settings)
    (row,) = prompts(np.random.default_rng(2), 97, 51)
    reader = Reader(model, [row])
    reader.read([(0, 0, 50)])
    (expected,) = reader.read([(0, 50, 51)])
    old = reader.tables[0]
    inside = np.arange(32, dtype=np.int32)
    reader.tables[0] = np.roll(old, 1)  # every block moves to where another was
    model.copy_slots((old[:, None] * 32 + inside).reshape(-1), (reader.tables[0][:, None] * 32 + inside).reshape(-1))
    assert reader.read([(0, 50, 51)])[0].equal(expected)
    model.clear_slots((old[:, None] * 32 + inside).reshape(-1))
    if runtime is NativeModel:
        assert not model.pool.reserve.bytes[:, old].any()


def test_a_pool_grows_shrinks_and_moves_its_blocks(tmp_path: Path) -> None:
    model = opened(built(tmp_path, "llama"), blocks=4, most_blocks=400)
    (row,) = prompts(np.random.default_rng(2), 97, 51)
    assert (model.blocks, model.most_blocks >= 400) == (4, True)
    while model.grow(60) < 60:
        pass
    table = np.array([50, 3], np.int32)
    reader = Reader(model, [row])
    reader.tables[0] = table
    (expected,) = reader.read([(0, 0, 51)])
    model.move_blocks(table[:1], np.array([1], np.int32))
    while not model.shrink(4):
        pass
    reader.tables[0] = np.array([1, 3], np.int32)
    assert reader.read([(0, 50, 51)])[0][0].equal(expected[50])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_pass_that_is_stopped_at_any_time_leaves_the_next_one_right(threads: int, tmp_path: Path) -> None:
    model = opened(built(tmp_path, "llama", num_hidden_layers=8), max_pass_tokens=80, threads=threads)
    work = chain(np.arange(80, dtype=np.int32), 32)
    expected = model.forward(work).copy()
    stopped = 0
    for turn in range(120):
        stop = np.zeros(1, np.int64)
        stopping = threading.Timer(turn * 0.00005, stop.__setitem__, (0, 1))
        stopping.start()
        found = model.forward_until(chain(np.full(80, turn % 97, np.int32), 32), stop)
        stopped += found is None
        stopping.join()
        assert np.array_equal(model.forward(work), expected)
    assert stopped
    assert model.forward_until(work, np.ones(1, np.int64)) is None
    assert np.array_equal(model.forward_until(work, np.zeros(1, np.int64)), expected)


def test_a_stopped_pass_waits_for_its_threads_because_they_share_memory(tmp_path: Path) -> None:
    model, ended = opened(built(tmp_path, "llama"), threads=2), list[bool]()
    helper = model._helpers[0]

    def late(_given: tuple[Any, ...]) -> None:
        time.sleep(0.1)
        ended.append(True)

    submit = helper.submit
    helper.submit = lambda _call, given: submit(late, given)  # type: ignore[method-assign, assignment, arg-type]
    assert model.forward_until(chain(np.arange(9, dtype=np.int32), 32), np.ones(1, np.int64)) is None
    assert ended


def test_passes_that_the_kernel_would_not_survive_are_refused(tmp_path: Path) -> None:
    folder = built(tmp_path, "llama")
    model = opened(folder, max_pass_tokens=40)
    work = chain(np.arange(40, dtype=np.int32), 32)
    short = Lanes(work.lanes.offsets, work.lanes.lengths, work.lanes.tables[:, :1])  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="40 keys do not fit 1 blocks of 32"):
        model.forward(Pass(work.tokens, work.positions, work.slots, short, work.out))
    for runtime in (model, PagedModel(folder, device="cpu", blocks=8, block_size=32, max_pass_tokens=40)):
        with pytest.raises(ValueError, match="a pass of 41 tokens; this model was built for 40"):
            runtime.forward(chain(np.arange(41, dtype=np.int32), 32))
        for token in (-1, 97, 1 << 30):
            with pytest.raises(ValueError, match=f"tokens: got {token}, allowed: ids from 0 to 96"):
                runtime.forward(chain(np.array([5, token], np.int32), 32))


def test_what_was_compiled_beside_read_only_files_is_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose image has been compiled for."""
    here, kept = tmp_path / "here", tmp_path / "kept"
    here.mkdir()
    (here / "words.py").write_text("")
    monkeypatch.setattr(compiled, "__file__", str(here / "words.py"))
    monkeypatch.setenv(KEPT_VARIABLE, str(kept))
    beside = compiled.folder()
    assert beside is not None
    assert beside.parent == here / "__pycache__"
    (beside / "made").mkdir()
    (beside / "made" / "code").write_text("compiled")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or here not in Path(path).parents)
    own = compiled.folder()
    assert own == kept / "numba" / beside.name
    assert (own / "made" / "code").read_text() == "compiled"
    assert own.stat().st_mode & 0o777 == 0o700
    assert kept.stat().st_mode & 0o777 == 0o700
    assert [*own.parent.iterdir()] == [own]
    (beside / "later").write_text("")
    assert compiled.folder() == own
    assert not (own / "later").exists()
    (here / "words.py").write_text("# another version")
    other = compiled.folder()
    assert other is not None
    assert other != own
    assert [*other.iterdir()] == [], "nothing is compiled of it"
    monkeypatch.setattr(compiled.metadata, "version", lambda _: "0")
    assert compiled.folder() not in (own, other), "another compiler"
    monkeypatch.setenv(compiled.FOLDER_VARIABLE, str(tmp_path / "parent's"))
    assert compiled.folder() == tmp_path / "parent's", "a child compiles where its parent looks"


def test_tiles_are_compiled_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "KEPT", tmp_path)
    wanted = frozenset({tiles.Tile(tiles.FLOATS, 1), tiles.Tile(tiles.FLOATS, 2)})
    here = tiles.addresses.__wrapped__(wanted)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    assert whole[words.DIGEST :].startswith(b"\x7fELF")
    with monkeypatch.context() as another:
        another.setattr(tiles, "_made", lambda *_: pytest.fail("made again"))
        there = tiles.addresses.__wrapped__(wanted)
    assert len({*here.values(), *there.values()}) == 4
    for damaged in (b"", whole[:-1], whole[:100] + b"\0" + whole[101:]):
        kept.write_bytes(damaged)
        tiles.addresses.__wrapped__(wanted)
        assert kept.read_bytes() == whole, "made again, and not run"
    tiles.addresses.__wrapped__(wanted - {tiles.Tile(tiles.FLOATS, 1)})
    assert len([*tmp_path.iterdir()]) == 2
    monkeypatch.setattr(llvmlite, "__version__", "0")
    tiles.addresses.__wrapped__(wanted)
    assert len([*tmp_path.iterdir()]) == 3
