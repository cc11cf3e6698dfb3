"""A plan says how much of a GPU's memory models take, on a machine without one. Which profile and model are chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.launcher import StartError, bundled, default_model
from covey.launcher.options import Options, parse
from covey.launcher.plan import GIB, plan
from tests.launcher.test_pairs import PAIRS, made, made_head
from tests.models import tiny_heads, tiny_models


def test_a_plan_has_the_arithmetic_of_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    family, own, other = PAIRS["llama3.1-8b"]
    target, drafter = made(tmp_path / "target", family, own, 2, 1), made(tmp_path / "drafter", family, other, 1, 2)
    first, *parts, last = plan(Options(profile="", model=str(target), drafter=str(drafter)), 1.0).splitlines()
    assert first == "profile gpu: takes 0.85 (target.memory) of the memory that is free"
    each = 2 * 2 * 8 * 2 / 1024  # KiB of a layer's keys and values in bfloat16
    assert [part.rpartition("each token of KV ")[2] for part in parts] == [f"{2 * each:g} KiB", f"{each:g} KiB"]
    assert parts[0].startswith("target on cuda: weights 0.00 GiB")
    most = 128 * 512  # requests of the profile, each as long as the model reads
    assert last == f"room for {most} tokens of KV, and for requests of up to 512"


def test_a_head_of_another_target_is_refused_in_a_plan_too(tmp_path: Path) -> None:
    family, own, _ = PAIRS["qwen3-8b"]
    target = made(tmp_path / "target", family, own, 8, 1)
    head = tiny_heads.build(tmp_path / "head", known=range(1, 97, 2))
    with pytest.raises(SettingError, match="head"):
        plan(Options(model=str(target), drafter=str(head)), 1.0)


def test_without_a_gpu_the_machine_s_own_memory_counts(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path / "target", "llama", **tiny_heads.TARGET)
    made_head(tmp_path / "head", folder)
    (folder / "tokenizer.json").write_bytes((made(tmp_path / "a", "llama", {}, 1, 1) / "tokenizer.json").read_bytes())
    with pytest.raises(SettingError, match="its tokenizer has"):
        plan(Options(model=str(folder)), 0.0)
    larger = made(tmp_path / "larger", *PAIRS["qwen2.5-7b"][:2], 2, 1)
    assert "target on cpu" in plan(Options(profile="", model=str(larger)), 0.0)
    with pytest.raises(SettingError, match="not enough memory on cuda"):
        plan(Options(model=str(larger)), 1 / GIB)


def test_a_profile_that_is_named_is_kept_and_one_without_weights_is_said(tmp_path: Path) -> None:
    family, own, _ = PAIRS["llama3.1-8b"]
    target = made(tmp_path / "target", family, own, 2, 1)
    assert plan(Options(profile="demo-cpu", model=str(target)), 1.0).startswith("profile demo-cpu")
    assert plan(Options(profile="emulated-7b"), 1.0) == "profile emulated-7b: it loads no weights"
    with pytest.raises(SystemExit):
        parse(["--plan", "nan"])


@pytest.mark.parametrize(("there", "profile"), [(True, "gpu"), (False, "demo-cpu")])
def test_a_model_of_ones_own_is_served_by_the_profile_of_its_device(
    there: bool, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "may_have_gpu", lambda: there)
    assert default_model.chosen(Options(profile="", model="/models/own")).profile == profile


def test_a_profile_of_the_users_that_names_no_model_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.toml").write_text("[front]\nrate = 5.0\n")
    (tmp_path / "other.toml").write_text('[target]\nfolder = "/models/target"\n')
    with caplog.at_level("WARNING"):
        default_model.chosen(Options(profile=str(tmp_path / "other.toml")))
        default_model.chosen(Options(profile=str(tmp_path / "mine.toml"), model="/models/own"))
        assert not caplog.records
        default_model.chosen(Options(profile=str(tmp_path / "mine.toml")))
    assert "has no target.folder: serving the small test pair; MODEL= names another" in caplog.text


def test_a_copy_of_the_real_model_s_profile_serves_the_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVEY_MODELS", raising=False)
    copy, here = tmp_path / "mine.toml", bundled.folder(tmp_path)
    copy.write_text((profile.profiles_folder() / "smollm2.toml").read_text().replace('"adaptive"', '"fixed:3"'))
    options = Options(profile=str(copy), state=tmp_path)
    for lacks in (options, Options(profile=default_model.REAL_PROFILE, state=tmp_path)):
        with pytest.raises(StartError, match=rf"needs {bundled.NAME} in .* fetches it, or give --model"):
            default_model.chosen(lacks)
    assert default_model.chosen(Options(profile="", state=tmp_path)).profile == "demo-cpu"
    here.mkdir(parents=True)
    assert default_model.chosen(options).model == str(here)
    assert default_model.chosen(replace(options, model="/models/own")).model == "/models/own"
