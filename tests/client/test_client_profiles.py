"""`covey profiles`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from covey.contracts import profile
from covey_client.cli import main

SHIPPED = sorted(path.stem for path in profile.profiles_folder().glob("*.toml"))


def test_check_accepts_every_shipped_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in SHIPPED]


def test_check_names_what_is_wrong_and_goes_on_and_an_empty_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("[target]\nblock_size = 0\n")
    (tmp_path / "good.toml").write_text('description = "fine [really]"\n')
    monkeypatch.setenv("COVEY_PROFILES", str(tmp_path))
    assert main(["profiles", "check"]) == 1
    bad, good = capsys.readouterr().out.splitlines()
    assert bad.split()[:2] == ["wrong", "bad"]
    assert bad.endswith("target.block_size: got 0, allowed: 1 to 256")
    assert good.endswith("fine [really]")
    assert main(["profiles", "check", "good"]) == 0
    for path in tmp_path.iterdir():
        path.unlink()
    assert main(["profiles", "check"]) == 2
    assert "COVEY_PROFILES" in capsys.readouterr().err


def test_check_refuses_models_that_the_start_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "typo.toml"
    path.write_text('models = ["target", "covey", "draft_maths"]\n[speculation]\ndrafters = ["draft_maths"]\n')
    assert main(["profiles", "check", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.split()[0] == "wrong"
    assert "model 'draft_maths' has no config.pbtxt" in out
    assert "draft_math," in out, "and which there are"


def test_check_says_that_a_profile_without_a_model_serves_the_test_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"mine": "", "drafters": 'models = ["draft_general"]', "model": '[target]\nfolder = "/models/target"'}
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(f'description = "fine"\n{text}')
    main(["profiles", "check", *(str(tmp_path / f"{name}.toml") for name in texts)])
    mine, drafters, model = capsys.readouterr().out.splitlines()
    assert mine.endswith("it serves the small test pair; MODEL= names another")
    assert drafters.endswith("fine")
    assert model.endswith("fine")


def settings(found: object, prefix: str = "") -> dict[str, object]:
    names: dict[str, object] = {}
    for field in dataclasses.fields(found):  # type: ignore[arg-type]
        value = getattr(found, field.name)
        if dataclasses.is_dataclass(value):
            names |= settings(value, f"{prefix}{field.name}.")
        elif prefix + field.name != "name":
            names[prefix + field.name] = value
    return names


def test_explain_has_every_setting_with_value_default_meaning_and_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\n[target]\nkv_memory_mb = 64\nrun_ahead = true\n')
    assert main(["profiles", "explain", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "mine"
    rows = {row["name"]: row for row in found["settings"]}
    expected = settings(profile.load(str(path)))
    assert {name: row["value"] for name, row in rows.items()} == json.loads(json.dumps(expected))
    assert all(row["meaning"] for row in rows.values())
    assert {name for name, row in rows.items() if row["origin"] == "file"} == {
        "description",
        "target.kv_memory_mb",
        "target.run_ahead",
    }
    assert rows["target.kv_memory_mb"]["default"] == 0
    assert rows["target.block_size"]["origin"] == "default"
    assert rows["target.block_size"]["allowed"] == "1 to 256"
    assert rows["target.dtype"]["allowed"].startswith("auto, bfloat16")


def test_explain_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\n[target]\nkv_memory_mb = 64\n[scheduler]\nmax_running = 64\n')
    assert main(["profiles", "explain", str(path)]) == 0
    out = capsys.readouterr().out
    meaning = "memory of the KV pool; 0: what target.memory leaves [0 to 4,194,304]"
    assert f"kv_memory_mb = 64  (file, default 0)\n    {meaning}\n" in out
    assert "run_ahead = true  (default)\n" in out
    assert "max_running = 64  (file)\n" in out
    assert "\n[target]\n" in out


def test_explain_of_an_unknown_profile_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "explain", "nothing-like-it"]) == 2
    err = capsys.readouterr().err
    assert "known profiles: " in err
    assert "demo-cpu" in err
