"""The compiler runs in a process of its own: what becomes of it ends no setup and no start."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.contracts.errors import UnsupportedModel
from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.drafters import opening
from covey.models.lanes import chain
from covey.models.native import compiled, tiles
from covey.models.native.model import NativeModel
from covey.process import cpu
from covey.process.private import KEPT_VARIABLE
from covey.target.runner import TargetRunner
from tests.models import tiny_models

ABORTS = "import os; print('LLVM ERROR: Symbol not found: __truncsfbf2', flush=True); os.abort()"


def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Have this code for a compiler, and nothing compiled yet."""
    monkeypatch.setattr(compiled, "KEPT", tmp_path)
    monkeypatch.setattr(compiled, "COMPILER", ("-c", code))


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (ABORTS, r"was ended by SIGABRT: LLVM ERROR: Symbol not found: __truncsfbf2"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("raise SystemExit('no room')", "failed with status 1: no room"),
        ("import time; print('at it', flush=True); time.sleep(60)", r"had not ended after 2 s: at it"),
    ],
)
def test_it_says_how_the_compiler_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, how: str) -> None:
    compiler(monkeypatch, tmp_path, code)
    monkeypatch.setattr(compiled, "SECONDS", 2.0)
    reason = compiled.ensure([compiled.MIXED])
    assert reason.startswith(f"the compiler for {cpu.label()} ")
    assert reason.endswith(how.replace("\\", ""))
    assert not any(path.name.endswith(".done") for path in tmp_path.iterdir())


def test_one_that_failed_is_tried_again_by_the_next_start_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(monkeypatch, tmp_path, ABORTS)
    assert "SIGABRT" in compiled.ensure([compiled.MIXED])
    compiler(monkeypatch, tmp_path, "pass")
    assert "SIGABRT" in compiled.ensure([compiled.MIXED]), "a model that is loaded meanwhile waits for no other one"
    assert compiled.ensure([compiled.MIXED], patient=True) == ""
    assert compiled.ensure([compiled.MIXED]) == ""
    assert compiled.missing([compiled.MIXED, compiled.BFLOAT16]) == [compiled.BFLOAT16]


def test_pytorch_computes_what_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_models.build(tmp_path / "model", "llama", torch.float32)
    compiler(monkeypatch, tmp_path, ABORTS)
    settings = TargetSettings(device="cpu", kv_blocks=16, threads=1)
    caplog.set_level(logging.INFO, "covey")
    target = TargetRunner.load(folder, settings, token_budget=64, name="target")
    assert type(target._model).__name__ == "PagedModel"
    assert "PyTorch computes it: the compiler for" in caplog.text
    with caplog.at_level(logging.INFO, "covey.drafter"):
        drafter = opening.open_drafter(folder, DrafterSettings(device="cpu", kv_blocks=16), 4)
    assert type(drafter.model).__name__ == "PagedModel"
    assert "using PyTorch: the native runtime cannot compute it: the compiler for" in caplog.text
    assert "Symbol not found: __truncsfbf2" in caplog.text


def test_without_avx2_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_models.build(tmp_path, "llama")
    monkeypatch.setenv(cpu.VARIABLE, "nehalem")
    with pytest.raises(UnsupportedModel, match=r"it needs AVX2, which nehalem \(no AVX2; COVEY_CPU; \d cores?\) lacks"):
        NativeModel(folder, dtype="float32", blocks=4, threads=1)
    target = TargetRunner.load(folder, TargetSettings(device="cpu", kv_blocks=16), token_budget=64, name="target")
    assert type(target._model).__name__ == "PagedModel"


def test_a_full_disk_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "gone")
    assert compiled.ensure([compiled.MIXED]).startswith("cannot keep compiled code: [Errno 2]")


def test_models_compile_nothing_themselves(tmp_path: Path) -> None:
    """Else a compiler that crashes could end a target all the same."""
    assert compiled.ensure(compiled.VARIANTS, patient=True) == ""
    kept = tmp_path / "kept"  # a copy: other tests compile meanwhile
    shutil.copytree(compiled.KEPT, kept, ignore=shutil.ignore_patterns("*.tmp.*"))
    before = sorted(path.name for path in kept.rglob("*"))
    folders = {"BF16": tmp_path / "two", "F32": tmp_path / "four"}
    tiny_models.build(folders["BF16"], "qwen3", torch.bfloat16)
    tiny_models.build(folders["F32"], "llama", torch.float32)
    said = (
        "import sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from covey.models.heads import Taps\n"
        "from covey.models.native import architecture, chains, stages, states\n"
        "from covey.models.native.model import NativeModel\n"
        f"for folder in {list(map(str, folders.values()))}:\n"
        "    wide = architecture.read(Path(folder)).width\n"
        "    taps = Taps((1,), np.ones((8, wide), np.float32), (np.ones((1, wide), np.float32),), 1e-5)\n"
        "    for dtype in ('bfloat16', 'float32', 'int8'):\n"
        "        NativeModel(folder, dtype=dtype, blocks=9, threads=1, max_pass_tokens=16).prepare_chains()\n"
        "        tapped = NativeModel(folder, dtype=dtype, blocks=9, threads=1, max_pass_tokens=16, taps=taps)\n"
        "        tapped.states(np.arange(99, dtype=np.int32))\n"
        "made = stages.run, chains.chain, states.make\n"
        "print(*(len(each.stats.cache_misses) for each in made), *(len(each.signatures) for each in made[::2]))\n"
        "print('numba.np.linalg' in sys.modules)\n"
    )
    own = os.environ | {compiled.FOLDER_VARIABLE: str(kept)}
    done = subprocess.run(
        [sys.executable, "-c", said], env=own, capture_output=True, text=True, check=True, timeout=120
    )
    kinds = "3" if tiles.has(tiles.PAIRS) else "2"  # without products of bfloat16, states are made in float32
    assert done.stdout.split() == ["0", "0", "0", "3", kinds, "False"], "what only a compilation needs is not loaded"
    assert sorted(path.name for path in kept.rglob("*")) == before


def test_two_byte_weights_give_the_bits_of_the_same_weights_in_float32(tmp_path: Path) -> None:
    narrow = tiny_models.build(tmp_path / "narrow", "llama", torch.bfloat16)
    wide = tmp_path / "wide"
    wide.mkdir()
    config = json.loads((narrow / "config.json").read_text()) | {"dtype": "float32"}
    (wide / "config.json").write_text(json.dumps(config))
    tensors = load_file(narrow / "model.safetensors")
    save_file({name: tensor.float() for name, tensor in tensors.items()}, wide / "model.safetensors", {"format": "pt"})
    text = np.random.default_rng(2).integers(0, 97, 90).astype(np.int32)
    found = {}
    for folder, expected in ((narrow, "bfloat16"), (wide, "float32")):
        model = NativeModel(folder, dtype="float32", blocks=8, threads=1, numerics="auto", max_pass_tokens=128)
        assert (model.weight_type, model.dtype, model.numerics) == (expected, "float32", "invariant")
        found[folder] = model.forward(chain(text, 32)).copy()
    assert np.array_equal(found[narrow], found[wide])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["haswell", "znver2", "skylake-avx512", "cascadelake", "znver4", "sapphirerapids"])
def test_every_variant_is_compiled_for_every_cpu(tmp_path: Path, name: str) -> None:
    """Also for one that this machine is not: what code would lack there is found without running it."""
    said = "from covey.models.native import compiled as c; print(c.ensure(c.VARIANTS, patient=True) or 'compiled')"
    environment = os.environ | {cpu.VARIABLE: name, KEPT_VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", said], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "compiled"
