import copy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from covey.contracts.errors import SettingError
from covey_training import architecture, distil
from covey_training.optimiser import Budget, Muon
from covey_training.teacher import Lessons, hidden_states

DISTIL = replace(distil.DistilSettings(), rows=2, log_every=2)


def weights(model: LlamaForCausalLM) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_commands_run_in_the_folder_that_the_clone_is_in(tmp_path: Path) -> None:
    """There `covey` is a folder without code, too."""
    (tmp_path / "covey").symlink_to(Path(architecture.__file__).parents[2])
    words = [sys.executable, "-m", "covey.launcher", "--help"]
    ran = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "covey.launcher" in ran.stdout


def test_a_budget_is_steps_or_minutes() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Budget()
    assert Budget(steps=8).progress(2) == 0.25
    assert Budget(minutes=1.0, seconds_before=30.0).progress(0) == pytest.approx(0.5, abs=0.01)


@pytest.fixture
def lessons(tiny_target: LlamaForCausalLM) -> Lessons:
    windows = torch.randint(2, 384, (10, 32), generator=torch.Generator().manual_seed(0))
    return Lessons(windows, hidden_states(tiny_target, windows, 4))


def run_distillation(
    student: LlamaForCausalLM, model: LlamaForCausalLM, lessons: Lessons, path: Path, *stops: int
) -> torch.Tensor:
    """Train a copy for 8 steps, leaving and resuming at `stops`."""
    for stop in (*stops, 8):
        trained = copy.deepcopy(student)
        distil.train(
            trained,
            lessons,
            model,
            Budget(steps=8),
            path,
            seed=0,
            settings=DISTIL,
            stop=lambda step, at=stop: step >= at,
        )
    return weights(trained)


def test_a_resumed_drafter_has_the_weights_of_an_uninterrupted_one(
    tiny_drafter: LlamaForCausalLM, tiny_target: LlamaForCausalLM, lessons: Lessons, tmp_path: Path
) -> None:
    whole = run_distillation(tiny_drafter, tiny_target, lessons, tmp_path / "whole.pt")
    resumed = run_distillation(tiny_drafter, tiny_target, lessons, tmp_path / "resumed.pt", 2, 5)
    assert not torch.equal(whole, weights(tiny_drafter))
    assert torch.equal(whole, resumed)


def fitted(
    student: LlamaForCausalLM,
    target: LlamaForCausalLM,
    tokens: torch.Tensor,
    path: Path,
    steps: int,
    broken: range,
    log_every: int = 2,
) -> list[dict[str, Any]]:
    """Train for some steps on one lesson, which has no numbers in the steps `broken`."""
    teacher = target(input_ids=tokens).logits.detach()

    def loss(step: int, _: float) -> distil.Loss:
        logits = student(input_ids=tokens, use_cache=False).logits
        return distil.distance(logits * (torch.nan if step in broken else 1.0), teacher, 0.5)

    settings = replace(DISTIL, log_every=log_every)
    return distil.fit(student, loss, Budget(steps=steps), path, device=torch.device("cpu"), settings=settings)


def test_a_lesson_without_numbers_teaches_nothing_and_ends_nothing(
    tiny_target: LlamaForCausalLM, tiny_drafter: LlamaForCausalLM, lessons: Lessons, tmp_path: Path
) -> None:
    tokens, path = lessons.tokens[:2], tmp_path / "drafter.pt"
    history = fitted(tiny_drafter, tiny_target, tokens, path, 8, range(2, 4), log_every=4)
    assert [each["step"] for each in history] == [4, 8]
    assert weights(tiny_drafter).isfinite().all()
    assert history[1]["acceptance"] > history[0]["acceptance"] > 0


def test_only_lessons_without_numbers_end_training_but_not_just_after_a_resume(
    tiny_target: LlamaForCausalLM, tiny_drafter: LlamaForCausalLM, lessons: Lessons, tmp_path: Path
) -> None:
    fresh, tokens, path = copy.deepcopy(tiny_drafter), lessons.tokens[:2], tmp_path / "drafter.pt"
    fitted(tiny_drafter, tiny_target, tokens, path, 3, range(0))
    assert [each["step"] for each in fitted(tiny_drafter, tiny_target, tokens, path, 4, range(3, 8))] == [2]
    for student, own in ((tiny_drafter, path), (fresh, tmp_path / "fresh.pt")):
        with pytest.raises(SettingError, match="none of 2 lessons had a finite loss"):
            fitted(student, tiny_target, tokens, own, 8, range(8))


def test_a_line_has_the_mean_acceptance_of_the_lessons_since_the_one_before(
    tiny_drafter: LlamaForCausalLM, lessons: Lessons, tmp_path: Path
) -> None:
    student = copy.deepcopy(tiny_drafter)

    def loss(step: int, _: float) -> distil.Loss:
        logits = student(input_ids=lessons.tokens[:1], use_cache=False).logits
        return logits.mean() * (torch.nan if step == 2 else 1.0), torch.tensor(step / 10)

    every = replace(DISTIL, log_every=4)
    history = distil.fit(
        student, loss, Budget(steps=8), tmp_path / "drafter.pt", device=torch.device("cpu"), settings=every
    )
    assert [each["acceptance"] for each in history] == pytest.approx([1 - 0.4 / 3, 1 - 2.2 / 4])


def test_a_signal_ends_training_between_steps_and_the_same_command_goes_on(
    tiny_drafter: LlamaForCausalLM,
    tiny_target: LlamaForCausalLM,
    lessons: Lessons,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = run_distillation(tiny_drafter, tiny_target, lessons, tmp_path / "whole.pt")
    stopped, handler, student = tmp_path / "stopped.pt", signal.getsignal(signal.SIGTERM), copy.deepcopy(tiny_drafter)

    def stop(step: int) -> bool:
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return False

    with pytest.raises(KeyboardInterrupt):
        distil.train(student, lessons, tiny_target, Budget(steps=8), stopped, seed=0, settings=DISTIL, stop=stop)
    shown = capsys.readouterr().err
    assert "drafter: step 2, acceptance" in shown, "without a terminal too"
    assert f"interrupted: saved in {stopped}" in shown
    assert torch.load(stopped, weights_only=True)["step"] == 3
    assert signal.getsignal(signal.SIGTERM) == handler
    assert torch.equal(whole, run_distillation(tiny_drafter, tiny_target, lessons, stopped))


def test_lessons_hold_the_target_s_logits(tiny_target: LlamaForCausalLM, lessons: Lessons) -> None:
    with torch.no_grad():
        expected = tiny_target(input_ids=lessons.tokens, use_cache=False).logits
    found = lessons.hidden.float() @ tiny_target.get_input_embeddings().weight.detach().T
    assert torch.allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("shape", [(48, 16), (16, 48)])
def test_muon_does_what_pytorch_s_does_but_for_bfloat16_s_rounding(shape: tuple[int, int]) -> None:
    numbers = torch.Generator().manual_seed(5)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    muon = Muon([ours], lr=0.02, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(8):
        ours.grad = torch.randn(shape, generator=numbers)
        theirs.grad = ours.grad.clone()
        muon.step()
        reference.step()
    moved = (ours - 1).norm()
    assert (ours - theirs).norm() < 0.01 * moved
