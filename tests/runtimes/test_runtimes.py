"""Which runtime computes a target is a rule, and what cannot be had is refused by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.profile import TargetSettings
from covey.models.native import model as native_model
from covey.process import cpu
from covey.runtimes import choice as runtimes
from covey.runtimes.choice import runtime_of
from covey.target.opening import load_target
from covey.target.runner import TargetRunner, typed
from tests.bundled import MODELS
from tests.models.tiny_models import build

TARGET = MODELS / "target" / "1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cuda"}, "the target is on a GPU"),
        ({"block_size": 16}, "target.block_size is 16, and the native runtime needs 32"),
        ({"dtype": "float64"}, "the target's dtype is float64, and the native runtime needs bfloat16 or"),
    ],
)
def test_settings_that_it_does_not_serve_are_pytorch_s(changes: dict[str, object], said: str) -> None:
    assert runtime_of(TARGET, TargetSettings(device="cpu")) == "native"
    assert runtime_of(TARGET, TargetSettings(**({"device": "cpu"} | changes))) == "torch"  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=f"target.runtime: got 'native', but {said}.*; use auto or torch"):
        runtime_of(TARGET, TargetSettings(**({"device": "cpu", "runtime": "native"} | changes)))  # type: ignore[arg-type]


def test_models_that_it_does_not_serve_and_those_that_ask_for_it_are_pytorch_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "DRIVERS", (tmp_path / "none",))
    assert runtime_of(TARGET, TargetSettings(device="auto")) == "native", "without a driver there is no GPU"
    assert runtime_of(TARGET, TargetSettings(device="cpu", runtime="torch")) == "torch"
    folder = build(tmp_path, "mistral")
    assert runtime_of(folder, TargetSettings(device="cpu")) == "torch"
    with pytest.raises(SettingError, match=r"but .* serves no model with a sliding window; use auto or torch"):
        typed(folder, TargetSettings(device="cpu", runtime="native"))


def test_bytes_are_refused_where_the_native_runtime_does_not_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = TargetSettings(device="cpu", dtype="int8")
    assert runtime_of(TARGET, small) == "native"
    for folder, settings, why in (
        (TARGET, replace(small, device="cuda"), "the target is on a GPU"),
        (TARGET, replace(small, runtime="torch"), "target.runtime is torch"),
        (build(tmp_path, "mistral"), small, ".* a sliding window"),
    ):
        with pytest.raises(SettingError, match=f"target.dtype: got 'int8', which needs the native runtime, but {why}"):
            typed(folder, settings)
    loaded = replace(small, kv_blocks=40, threads=1)
    monkeypatch.setattr(native_model, "passes_agree", lambda *_: False)
    assert TargetRunner.load(TARGET, loaded, token_budget=64, name="target").info().numerics == "fast"
    with pytest.raises(SettingError, match=r"passes in int8 are not invariant on this CPU; .* with dtype auto"):
        TargetRunner.load(TARGET, replace(loaded, numerics="invariant"), token_budget=64, name="target")
    monkeypatch.setattr(cpu, "multiplies_bytes", lambda: False)
    with pytest.raises(SettingError, match="does not multiply bytes; use dtype auto"):
        typed(TARGET, small)


@pytest.mark.parametrize("numerics", ["auto", "invariant"])
def test_where_its_passes_are_not_invariant_pytorch_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, numerics: str
) -> None:
    folder = build(tmp_path, "llama")
    monkeypatch.setattr(native_model, "passes_agree", lambda *_: False)
    settings = TargetSettings(device="cpu", dtype="float32", kv_blocks=40, threads=1, numerics=numerics)
    assert TargetRunner.load(folder, settings, token_budget=64, name="target").info().numerics == "invariant"
    assert "PyTorch computes it" in caplog.text
    opened = load_target(folder, profile.Profile("a", target=settings), name="target")
    assert opened.info().numerics == "invariant", "as a server opens it"
    named = replace(settings, runtime="native")
    if numerics == "auto":
        assert TargetRunner.load(folder, named, token_budget=64, name="target").info().numerics == "fast"
    else:
        with pytest.raises(SettingError, match=r"not invariant on this CPU; use target\.runtime torch"):
            TargetRunner.load(folder, named, token_budget=64, name="target")


def test_identities_name_the_runtime() -> None:
    found = {
        TargetRunner.load(
            TARGET,
            TargetSettings(device="cpu", threads=1, kv_blocks=20, runtime=runtime, numerics="fast"),
            token_budget=64,
            name="target",
        )
        .info()
        .identity
        for runtime in ("native", "torch")
    }
    assert len(found) == 2


def test_a_target_s_process_imports_no_torch() -> None:
    said = (
        "import sys\n"
        "from dataclasses import replace\n"
        "from covey.contracts.profile import Profile\n"
        "from covey.target.opening import load_target\n"
        "profile = Profile(name='main')\n"
        "target = replace(profile.target, device='cpu', kv_memory_mb=16, threads=1, numerics='fast')\n"
        f"info = load_target({str(TARGET)!r}, replace(profile, target=target), name='target').info()\n"
        "print(info.block_size, sys.modules.get('torch'))\n"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "32 None"


def test_a_head_is_looked_for_beside_its_target_s_entry_wherever_the_target_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, object] = {}
    monkeypatch.setattr(TargetRunner, "load", lambda folder, _settings, **given: opened.update(given, folder=folder))
    settings = profile.TargetSettings(head="draft_head", kv_blocks=1)
    load_target(tmp_path, profile.Profile("a", target=settings), name="target", entry="/models/target/1")
    assert (opened["folder"], opened["head"]) == (tmp_path, "/models/draft_head/1")
    named = profile.DrafterSettings(folders=("draft_head:/elsewhere",))
    load_target(tmp_path, profile.Profile("a", target=settings, drafter=named), name="target", entry="/models/target/1")
    assert opened["head"] == "/elsewhere"
