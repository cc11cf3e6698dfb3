"""Who gets what of a device's memory, and that a process holds what was reckoned."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from covey.contracts.errors import SettingError
from covey.contracts.profile import DrafterSettings, Profile, SchedulerSettings, TargetSettings
from covey.drafters.opening import open_drafter, open_head
from covey.models import heads
from covey.runtimes import budget
from covey.runtimes.budget import CPU, GPU, LEAST, Gpu, Part, tokens
from covey.target.runner import open_target, typed
from tests.bundled import MODELS
from tests.models import tiny_heads, tiny_models

GIB = 1 << 30
TARGET = Part("target", GPU, 15 * GIB, 57344, 32768)
SMALL = Part("draft_general", GPU, GIB, 12288, 32768)
CHOSEN = Profile("a", target=TargetSettings(memory=0.8))


def test_weights_drafters_and_pool_share_a_device() -> None:
    assert tokens([TARGET], {GPU: 24 * GIB}, CHOSEN) == (int(0.8 * 24 * GIB) - 15 * GIB) // 57344
    both = tokens([TARGET, SMALL], {GPU: 24 * GIB}, CHOSEN)
    assert both == (int(0.8 * 24 * GIB) - 16 * GIB) // (57344 + 12288), "a drafter has room for the same tokens"
    elsewhere = replace(SMALL, device=CPU)
    most = tokens([TARGET], {GPU: 24 * GIB}, CHOSEN)
    assert tokens([TARGET, elsewhere], {GPU: 24 * GIB, CPU: 64 * GIB}, CHOSEN) == most
    assert tokens([TARGET, elsewhere], {GPU: 24 * GIB, CPU: 3 * GIB}, CHOSEN) == (
        (int(0.8 * 3 * GIB) - GIB - budget.SERVER) // 12288
    ), "the device with least room says how many"


def test_what_fits_to_the_byte_is_taken_with_a_process_for_each_drafter_on_a_cpu() -> None:
    whole = Profile("a", target=TargetSettings(memory=1.0), scheduler=SchedulerSettings(max_running=1))
    parts = [replace(TARGET, device=CPU), replace(SMALL, device=CPU), replace(SMALL, device=CPU)]
    least = budget.SERVER + 2 * budget.DRAFTER + 17 * GIB + LEAST * (57344 + 2 * 12288)
    assert tokens(parts, {CPU: least}, whole) == LEAST
    with pytest.raises(SettingError, match="not enough memory on cpu"):
        tokens(parts, {CPU: least - 1}, whole)
    short = replace(TARGET, device=CPU, longest=100)
    assert tokens([short], {CPU: budget.SERVER + 15 * GIB + 100 * 57344}, whole) == 100, "of short texts fewer do"


def test_a_pool_is_no_larger_than_all_requests_can_need() -> None:
    few = replace(CHOSEN, scheduler=SchedulerSettings(max_running=3))
    assert tokens([TARGET, SMALL], {GPU: 400 * GIB}, few) == 3 * 32768


def test_a_size_that_the_profile_says_wins() -> None:
    named = replace(TARGET, pool=1000 * 57344)
    assert tokens([named, SMALL], {GPU: 17 * GIB}, CHOSEN) == 1000, "of all that is free, as asked"
    own = replace(SMALL, pool=GIB)
    assert tokens([TARGET, own], {GPU: 24 * GIB}, CHOSEN) == (int(0.8 * 24 * GIB) - 17 * GIB) // 57344


def test_memory_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(SettingError, match=r"drafter\.kv_memory_mb: one KV block of target takes 1835008 bytes"):
        budget.blocks(replace(TARGET, pool=1 << 20), 32, "drafter")


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(SettingError) as caught:
        tokens([TARGET, SMALL], {GPU: 20 * GIB}, CHOSEN)
    assert str(caught.value) == (
        "not enough memory on cuda: weights take 16.00 GiB (target 15.00, draft_general 1.00), processes 0.00 and KV "
        f"of {LEAST} tokens 0.07; 20.00 GiB are free, of which target.memory takes 0.8: raise target.memory, "
        "serve a smaller model or fewer drafters, or less KV"
    )
    large = replace(TARGET, device=CPU, pool=8 * GIB)
    with pytest.raises(
        SettingError, match=r"processes 0\.75 and KV .* 8\.00; 20\.00 GiB are free, all of which may be"
    ):
        tokens([large], {CPU: 20 * GIB}, CHOSEN)


@pytest.mark.parametrize(
    ("family", "runtime"), [("llama", "auto"), ("llama", "torch"), ("gemma3", "auto"), ("gpt2", "torch")]
)
def test_a_token_takes_what_the_model_s_pool_gives_it(tmp_path: Path, family: str, runtime: str) -> None:
    folder = tiny_models.build(tmp_path, family)
    asked = TargetSettings(device="cpu", dtype="float32", kv_blocks=4, numerics="fast", threads=1, runtime=runtime)
    _, model = open_target(folder, typed(folder, asked), 64, 0, 0)
    part = budget.of_target(folder, typed(folder, asked), Gpu())
    assert (part.token * 32, part.longest) == (model.bytes_per_block, model.max_positions)


def test_a_target_in_bytes_takes_a_byte_for_each_weight() -> None:
    folder, settings = MODELS / "target" / "1", TargetSettings(device="cpu", kv_blocks=4, numerics="fast", threads=1)
    in_bytes = replace(settings, dtype="int8")
    small, words = (budget.of_target(folder, each, Gpu()) for each in (in_bytes, replace(settings, dtype="bfloat16")))
    assert small.weights < 0.7 * words.weights
    assert small.token == words.token
    with pytest.raises(SettingError, match="'int8', which needs the native runtime, but the target is on a GPU"):
        budget.of_target(folder, replace(in_bytes, device="auto"), Gpu(GIB))
    with pytest.raises(SettingError, match=r"but target\.runtime is torch; use dtype auto"):
        budget.of_target(folder, replace(in_bytes, runtime="torch"), Gpu())
    _, model = open_target(folder, typed(folder, in_bytes), 64, 0, 0)
    assert small.token * 32 == model.bytes_per_block


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_embedding_that_no_file_maps_is_counted(tmp_path: Path, dtype: str, tied: bool) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 128, "vocab_size": 8192}
    folder = tiny_models.build(tmp_path, "llama", torch.float32, tie_word_embeddings=tied, **sizes)
    settings = TargetSettings(device="cpu", dtype=dtype, kv_blocks=4, numerics="fast", threads=1)
    _, model = open_target(folder, typed(folder, settings), 64, 0, 0)
    held = model._passes._weights  # type: ignore[union-attr]
    taken = held.bytes + held.held.embedding.nbytes
    assert budget.of_target(folder, settings, Gpu()).weights == pytest.approx(taken, rel=0.1)


def test_a_drafter_s_token_takes_what_its_pool_gives_it() -> None:
    folder, settings = MODELS / "draft_general" / "1", DrafterSettings(kv_blocks=4)
    part = budget.of_drafter("draft_general", folder, settings, Gpu())
    assert part.token * 32 == open_drafter(folder, settings, 4).model.bytes_per_block
    on_gpu = budget.of_drafter("draft_general", folder, DrafterSettings(device="cuda"), Gpu(GIB, bfloat16=True))
    assert (on_gpu.device, on_gpu.token) == (GPU, 2 * 1 * 1 * 32 * 2)


@pytest.mark.parametrize("runtime", ["auto", "torch"])
def test_a_head_and_the_states_for_it_take_what_the_pools_give_them(tmp_path: Path, runtime: str) -> None:
    folder = tiny_models.build(tmp_path / "target", "llama", **tiny_heads.TARGET)
    head, dtype = tiny_heads.build(tmp_path / "head"), "float32" if runtime == "auto" else "float64"
    asked = TargetSettings(device="cpu", dtype=dtype, kv_blocks=4, numerics="fast", threads=1, runtime=runtime)
    taps = heads.taps_of(head, folder)
    _, model = open_target(folder, typed(folder, asked), 64, 0, 0, taps)
    part = budget.of_target(folder, typed(folder, asked), Gpu(), taps.fc.shape)
    assert part.token * 32 == model.bytes_per_block
    settings = DrafterSettings(kv_blocks=4, device="cpu", dtype=dtype)
    own = budget.of_drafter("draft_head", head, settings, Gpu(), folder)
    assert own.token * 32 == open_head(head, folder, settings, 4).model.bytes_per_block


def test_a_head_on_a_gpu_is_counted_there(tmp_path: Path) -> None:
    folder, head = tiny_models.build(tmp_path / "target", "llama", **tiny_heads.TARGET), tiny_heads.build(tmp_path)
    gpu, layer = Gpu(GIB, bfloat16=True), 2 * tiny_heads.KV_HEADS * tiny_heads.DIM * 2
    own = budget.of_drafter("draft_head", head, DrafterSettings(device="cuda"), gpu, folder)
    held = 2 * sum(tensor.numel() for tensor in load_file(head / "model.safetensors").values())
    assert (own.device, own.token) == (GPU, layer)
    assert own.weights == held + 2 * tiny_heads.VOCAB * tiny_heads.WIDTH, "the target's embedding, too"
    without, beside = (
        budget.of_target(folder, TargetSettings(device="cuda", dtype="bfloat16"), gpu, product)
        for product in ((0, 0), (tiny_heads.WIDTH, 3 * tiny_heads.WIDTH))
    )
    assert beside.token - without.token == without.token // 6, "a plane as large as a layer's"
    assert beside.weights - without.weights == 2 * tiny_heads.WIDTH * 3 * tiny_heads.WIDTH


FILL = """
import gc, json, sys
from dataclasses import replace
import numpy as np
from covey.contracts.clock import RealClock
from covey.contracts.profile import Profile, SchedulerSettings, TargetSettings
from covey.loop.configuration import EngineConfig
from covey.loop.engine import Engine
from covey.process.footprint import private_bytes
from covey.requests.scheduler import Scheduler
from covey.models.native import model
from covey.runtimes import budget
from covey.target.opening import load_target
from tests.fakes import Collector, request
from tests.static_planner import StaticPlanner

rows = 8
settings = TargetSettings(device="cpu", numerics="fast")
chosen = Profile("a", target=settings, scheduler=SchedulerSettings(max_running=rows))
load_target(sys.argv[1], replace(chosen, target=replace(settings, kv_blocks=8)), name="target")  # what code takes
gc.collect()
before = private_bytes()
target = load_target(sys.argv[1], chosen, name="target")
loaded, info, sink = private_bytes(), target.info(), Collector()
scheduler = Scheduler(max_running=rows, max_waiting=rows, token_budget=256, growth_tokens=64, block_size=32)
engine = Engine(target, scheduler, StaticPlanner(0, 1), sink, RealClock(), EngineConfig({}))
for key in range(rows):
    prompt = np.random.default_rng(key).integers(0, info.vocab_size, info.longest - 2)
    engine.submit(request(key, prompt, 2))
while engine.round():
    pass
part = budget.of_target(sys.argv[1], settings, budget.Gpu())
reckoned = part.weights, info.pool_tokens * part.token
told = [len(tokens) for tokens in sink.tokens.values()]
print(json.dumps([info.pool_tokens, told, *reckoned, loaded - before, private_bytes() - before]))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_process_whose_pool_is_full_holds_what_was_reckoned(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 1 << 16}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=2048, tie_word_embeddings=False)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True, timeout=250
    )
    held, told, weights, pool, loaded, filled = json.loads(done.stdout.splitlines()[-1])
    assert (held, told) == (8 * 2048, [2] * 8), "requests of the longest text fill it"
    # Huge pages bring 2 MB of the pool at a touch, and buffers take what the reading of weights left behind.
    assert loaded < weights + 0.25 * pool, "little of the pool is touched before it is used"
    # What a process takes besides, some 12 MB here, is not reckoned by the byte: `budget.SERVER` has room for it.
    assert filled == pytest.approx(weights + pool, rel=0.05)
