"""What a model's folder recommends, for `covey status` to show."""

from __future__ import annotations

import json
from pathlib import Path

from covey.text.model_folder import ModelFolder, read


def test_defaults_and_template_are_read_and_nothing_is_needed(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelFolder({}, False)
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 1, "top_k": None, "eos_token_id": [1, 5]}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert read(tmp_path) == ModelFolder({"temperature": 0.6, "top_p": 1}, False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert read(tmp_path).has_chat_template
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert read(tmp_path).has_chat_template
    (tmp_path / "generation_config.json").write_text("{")
    assert read(tmp_path).sampling == {}


def test_defaults_that_no_request_could_have_are_left_out(tmp_path: Path) -> None:
    wrong = {"temperature": -1, "top_p": 0, "top_k": 1.5, "min_p": True, "repetition_penalty": "1.1"}
    (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
    assert read(tmp_path).sampling == {}
