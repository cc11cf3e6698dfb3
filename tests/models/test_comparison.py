"""A config.json and weights of one model agree, in every family; those of two models do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from covey.models import comparison, refusals, stored
from tests.models.tiny_models import FAMILIES, MORE, build


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(family, marks=pytest.mark.slow) for family in MORE)])
def test_the_width_and_the_layers_of_every_family_are_compared(family: str, tmp_path: Path) -> None:
    config = refusals.servable(build(tmp_path, family))
    found = stored.tensors(refusals.weight_files(tmp_path))
    comparison.check(tmp_path, config, found)
    for keys in (("hidden_size", "n_embd", "word_embed_proj_dim"), ("num_hidden_layers", "n_layer"), ("vocab_size",)):
        others = {key: config[key] + 1 for key in keys if key in config}
        with pytest.raises(SettingError, match="copy both from one model"):
            comparison.check(tmp_path, config | others, found)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_without_a_vocabulary_size_no_family_takes_its_default(family: str, tmp_path: Path) -> None:
    path = build(tmp_path, family) / "config.json"
    config = json.loads(path.read_text())
    del config["vocab_size"]
    path.write_text(json.dumps(config))
    with pytest.raises(SettingError, match=f"^{tmp_path}: config.json has no vocab_size; copy it again$"):
        refusals.servable(tmp_path)
