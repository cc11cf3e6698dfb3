"""Where the target's files are is said in one place, which everybody reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from tests.tritonio import adapters


def test_the_target_s_configuration_cannot_name_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, _fake = adapters.load(monkeypatch, "target")
    loaded: list[object] = []
    monkeypatch.setattr(module, "load_target", lambda folder, *_rest, **_named: loaded.append(folder))
    entry = {"model_name": "target", "model_repository": str(tmp_path), "model_version": "1"}
    named = {"folder": {"string_value": "/elsewhere"}}
    with pytest.raises(SettingError, match=r"parameter folder: .* the profile \(target\.folder\) or with --model"):
        module.TritonPythonModel().initialize(entry | {"model_config": json.dumps({"parameters": named})})
    module.TritonPythonModel().initialize(entry | {"model_config": json.dumps({"parameters": {}})})
    assert loaded == [tmp_path / "1"]
