"""`python -m covey_training drafter`: a folder and a profile for any target, and an honest estimate."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.contracts.errors import SettingError
from covey.contracts.profile import GENERAL, load
from covey.launcher import Options
from covey.models import loading, refusals
from covey.text import vocabulary
from covey_training import own, texts
from covey_training.__main__ import parse
from covey_training.chains import Sample
from tests.models.tiny_models import build


@pytest.fixture(scope="module")
def target(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Granite's logits are not its head's, and end tokens may be several."""
    folder = tmp_path_factory.mktemp("own") / "target"
    build(folder, "granite", vocab_size=384, num_hidden_layers=4, eos_token_id=[1, 2], logits_scaling=0.5)
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


def distilled(target: Path, out: Path, *more: str) -> own.Made:
    words = f"drafter --target {target} --out {out} --samples 40 --tokens 24 --device cpu".split()
    return own.make(parse([*words, *more]))


@pytest.mark.slow
def test_it_beats_n_grams_fits_its_target_and_goes_on_where_it_stopped(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    first = distilled(target, out, "--steps", "4")
    before = load_file(out / "model.safetensors")
    made = distilled(target, out, "--steps", "30")
    found, before_it = made.report["held out"], first.report["held out"]
    assert found[GENERAL].acceptance[0] > before_it[GENERAL].acceptance[0]
    assert found[GENERAL].acceptance[0] > found["n-gram"].acceptance[0] + 0.05
    assert not all(torch.equal(tensor, before[name]) for name, tensor in load_file(out / "model.safetensors").items())
    assert distilled(target, out, "--steps", "30") == made, "nothing is drawn anew, nothing is left to learn"
    assert vocabulary.misfit(out, target) == ""
    assert refusals.weight_files(out)
    assert loading.find_end_ids(out, loading.read_config(out)) == (1, 2)
    profile = load(str(made.profile))
    assert profile.target.folder == str(target)
    assert profile.drafter.folder_of(GENERAL) == str(out)
    assert Options(profile=str(made.profile)).deployment().speculation.drafters[0] == GENERAL
    for other in (("--seed", "1"), ("--window", "128")):
        with pytest.raises(SettingError, match="another target, other settings or another version"):
            distilled(target, out, "--steps", "30", *other)


def test_a_target_whose_code_knows_one_attention_is_read_with_it(tmp_path: Path) -> None:
    config = loading.read_config(build(tmp_path, "gpt_oss"))
    loading.load_module(tmp_path, config, torch.float32, torch.device("cpu"), texts.attention_of(config))


def test_n_grams_are_right_about_what_was_there_before() -> None:
    assert own.looked_up([Sample([5, 6, 7, 5], [6, 7, 5, 6])]) == [[True] * 4]
    assert own.looked_up([Sample([5, 6], [7, 8, 9])]) == [[False] * 3]


def test_prompts_are_lines_and_some_are_needed_to_measure_by(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\n")
    with pytest.raises(SettingError, match=r"prompts\.txt: 2 prompts, allowed: 10 lines or more"):
        texts.read_prompts(path)
    path.write_text("\n".join(map(str, range(12))))
    assert texts.read_prompts(path) == {"prompts.txt": list(map(str, range(12)))}
