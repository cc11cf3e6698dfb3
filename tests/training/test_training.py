import copy
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from covey_training import architecture, corpora, distil, target, teacher, tokenizer
from covey_training.optimiser import Budget
from covey_training.streams import Mixture, Stream

SETTINGS = replace(target.TargetSettings(), rows=4, length=16, log_every=2)
DISTIL = replace(distil.DistilSettings(), rows=2, log_every=2, shared_by=0.4)


def weights(model: LlamaForCausalLM) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def run_target(model: LlamaForCausalLM, streams: dict[str, Stream], path: Path, *stops: int) -> torch.Tensor:
    """Train a copy for 8 steps, leaving and resuming at `stops`."""
    for stop in (*stops, 8):
        trained = copy.deepcopy(model)
        target.train(
            trained,
            Mixture(streams),
            {},
            Budget(steps=8),
            path,
            settings=SETTINGS,
            stop=lambda step, at=stop: step >= at,
        )
    return weights(trained)


def test_a_resumed_target_has_the_weights_of_an_uninterrupted_one(
    tiny_target: LlamaForCausalLM, streams: dict[str, Stream], tmp_path: Path
) -> None:
    whole = run_target(tiny_target, streams, tmp_path / "whole.pt")
    resumed = run_target(tiny_target, streams, tmp_path / "resumed.pt", 3, 7)
    assert not torch.equal(whole, weights(tiny_target))
    assert torch.equal(whole, resumed)


def test_a_signal_ends_training_between_steps_and_the_same_command_goes_on(
    tiny_target: LlamaForCausalLM, streams: dict[str, Stream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, stopped = run_target(tiny_target, streams, tmp_path / "whole.pt"), tmp_path / "stopped.pt"
    handler = signal.getsignal(signal.SIGTERM)

    def stop(step: int) -> bool:
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return False

    with pytest.raises(KeyboardInterrupt):
        target.train(
            copy.deepcopy(tiny_target), Mixture(streams), {}, Budget(steps=8), stopped, settings=SETTINGS, stop=stop
        )
    shown = capsys.readouterr().err
    assert "target: step 2, loss" in shown, "without a terminal too"
    assert f"interrupted: kept in {stopped}" in shown
    assert torch.load(stopped, weights_only=True)["step"] == 3
    assert signal.getsignal(signal.SIGTERM) == handler
    assert torch.equal(whole, run_target(tiny_target, streams, stopped))


def test_commands_run_in_the_folder_that_the_clone_is_in(tmp_path: Path) -> None:
    """There `covey` is a folder without code, too."""
    (tmp_path / "covey").symlink_to(Path(corpora.__file__).parents[2])
    words = [sys.executable, "-m", "covey.server", "--help"]
    ran = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "covey.server" in ran.stdout


def test_training_lowers_the_loss(tiny_target: LlamaForCausalLM, streams: dict[str, Stream], tmp_path: Path) -> None:
    path = tmp_path / "target.pt"
    history = target.train(tiny_target, Mixture(streams), {}, Budget(steps=30), path, settings=SETTINGS)
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.4


def test_a_budget_is_steps_or_minutes() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Budget()
    assert Budget(steps=8).progress(2) == 0.25
    assert Budget(minutes=1.0, seconds_before=30.0).progress(0) == pytest.approx(0.5, abs=0.01)


@pytest.fixture
def lessons(
    tiny_target: LlamaForCausalLM, data: Path, streams: dict[str, Stream], tokenizer_folder: Path
) -> teacher.Lessons:
    settings = teacher.LessonSettings(corpus_tokens=256, samples=6, sample_tokens=8, length=32, rows=4)
    vocabulary = tokenizer.load(tokenizer_folder)
    documents = corpora.documents("math", data)
    return teacher.prepare(tiny_target, vocabulary, "math", documents, streams["math"], seed=0, settings=settings)


def run_distillation(
    student: LlamaForCausalLM, model: LlamaForCausalLM, lessons: teacher.Lessons, path: Path, *stops: int
) -> torch.Tensor:
    for stop in (*stops, 8):
        students = {name: copy.deepcopy(student) for name in ("draft_general", "draft_math")}
        distil.train(
            students,
            {"draft_general": lessons, "draft_math": lessons},
            model,
            Budget(steps=8),
            path,
            seed=0,
            settings=DISTIL,
            stop=lambda step, at=stop: step >= at,
        )
    return weights(students["draft_math"])


def test_a_resumed_drafter_has_the_weights_of_an_uninterrupted_one(
    tiny_drafter: LlamaForCausalLM, tiny_target: LlamaForCausalLM, lessons: teacher.Lessons, tmp_path: Path
) -> None:
    whole = run_distillation(tiny_drafter, tiny_target, lessons, tmp_path / "whole.pt")
    resumed = run_distillation(tiny_drafter, tiny_target, lessons, tmp_path / "resumed.pt", 2, 5)
    assert not torch.equal(whole, weights(tiny_drafter))
    assert torch.equal(whole, resumed)


def test_lessons_hold_the_target_s_logits(tiny_target: LlamaForCausalLM, lessons: teacher.Lessons) -> None:
    with torch.no_grad():
        expected = tiny_target(input_ids=lessons.tokens, use_cache=False).logits
    found = lessons.hidden.float() @ tiny_target.get_input_embeddings().weight.detach().T
    assert torch.allclose(found, expected, atol=0.02)


def test_a_saved_model_loads_again(tiny_drafter: LlamaForCausalLM, tokenizer_folder: Path, tmp_path: Path) -> None:
    architecture.save_model(tiny_drafter, tmp_path, "draft_math", tokenizer_folder)
    loaded = architecture.load_model(tmp_path, "draft_math")
    assert loaded.config.eos_token_id == 0
    assert torch.equal(weights(loaded), weights(tiny_drafter).to(torch.bfloat16).float())
    assert {path.name for path in (tmp_path / "draft_math").iterdir()} == {"1"}


def test_cut_prompts_of_code_keep_the_marker(learned: Tokenizer) -> None:
    order = random.Random(0)
    document = corpora.CODE_MARKER + "import os\n" * 40
    assert teacher.cut_prompt("code", document, order).startswith(corpora.CODE_MARKER)
    assert tokenizer.end_of_text(learned) == 0
