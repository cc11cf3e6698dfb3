"""Chains that compiled code draws are those that go step by step, token by token and share by share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import DraftReply, Sampling
from covey.drafters import opening
from covey.drafters.neural import NeuralDrafter
from covey.models import paged_stepper
from covey.models.native import chains
from covey.process import cpu
from tests.drafters.drafting import Sender, Text, rows_of
from tests.drafters.head_sender import HeadSender
from tests.models import tiny_heads, tiny_models
from tests.models.tiny_heads import Formula

RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(2, 97, length).tolist() for length in (30, 3, 60, 31, 200)]
DEPTHS = [5, 1, 3, 5, 2]
LOW = 50  # of the targets' 97 ids
SAMPLINGS = [Sampling(), Sampling(1.0, seed=1), Sampling(0.3, seed=2), Sampling(1.7, seed=3), Sampling()]


def replies(load: Callable[[], NeuralDrafter], sender: Callable[[NeuralDrafter], Sender]) -> Sequence[DraftReply]:
    """Five rounds of five rows: of unequal depths, greedy and drawn, behind one or several new tokens each."""
    asked = sender(load())
    texts = [Text(tag, list(prompt), sampling) for tag, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS))]
    found = []
    for turn in range(5):
        reply = asked.send(texts, DEPTHS)
        found.append(reply)
        for place, (text, own) in enumerate(zip(texts, rows_of(reply.trees))):
            text.tokens += [*own[: (turn + place) % 3], 11 + turn]
    return found


@pytest.mark.parametrize(
    ("kind", "dtype", "threads"),
    [
        ("drafter", "float32", 3),
        ("head", "bfloat16", 2),
        ("head of normed outputs", "float32", 1),
        ("head for low ids", "float32", 3),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("drafter", "bfloat16", 1), ("head", "float32", 1), ("head of normed outputs", "bfloat16", 3))
        ),
    ],
)
def test_compiled_chains_are_those_of_single_steps(
    kind: str, dtype: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "threads_for", lambda _folder: threads)
    settings = DrafterSettings(dtype=dtype, kv_blocks=64)
    target = tiny_models.build(tmp_path / "target", "llama", **tiny_heads.TARGET)
    head = kind != "drafter"
    folder = tiny_heads.build(tmp_path / "head", norm_output="normed" in kind) if head else target

    def load() -> NeuralDrafter:
        made = NeuralDrafter.load(folder, settings, name="draft", target=target if head else None)
        if "low ids" in kind:  # only some of the head's columns are below the bound
            whole = made.draft
            made.draft = lambda work: whole(replace(work, vocab_size=LOW))  # type: ignore[method-assign]
        return made

    def sender(drafter: NeuralDrafter) -> Sender:
        if not head:
            return Sender(drafter)
        return HeadSender(drafter, Formula(folder, target))

    drawn: list[int] = []
    whole = paged_stepper.NativeStepper.chain

    def counted(self: paged_stepper.NativeStepper, pending: np.ndarray, race: object) -> object:
        drawn.append(len(pending))
        return whole(self, pending, race)  # type: ignore[arg-type]

    monkeypatch.setattr(paged_stepper.NativeStepper, "chain", counted)
    together = replies(load, sender)
    assert len(drawn) == 5
    monkeypatch.setattr(paged_stepper.NativeStepper, "chain", lambda *_: None)  # as for too many rows
    for found, expected in zip(together, replies(load, sender)):
        assert rows_of(found.trees) == rows_of(expected.trees)
        assert "low ids" not in kind or found.trees.tokens.max() < LOW
        np.testing.assert_allclose(found.trees.scores, expected.trees.scores, rtol=2e-4, atol=2e-5)


def test_logarithms_are_exact_enough() -> None:
    """Over all magnitudes that noise takes them of, from a draw that hardly happens to one that nearly always does."""
    for x in np.concatenate([np.logspace(-37, 1, 400), 1 - np.logspace(-7, -0.1, 100)]).astype(np.float32):
        assert chains.logarithm(x) == pytest.approx(float(np.log(np.float64(x))), rel=2e-6, abs=2e-7)
    assert chains.logarithm(np.float32(0)) < -1e38


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_only_heavy_drafters_compute_in_several_threads(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "cores", lambda: cores)
    file, threads = tmp_path / "model.safetensors", []
    for megabytes in (1, 7, 8, 31, 32, 500):
        with file.open("wb") as opened:
            opened.truncate(megabytes << 20)
        threads.append(opening.threads_for(tmp_path))
    assert threads == [1, 1, min(2, cores), min(2, cores), cores, cores]
