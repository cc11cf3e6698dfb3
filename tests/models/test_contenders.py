"""Compiled code finds the same tokens that can win a race as NumPy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.models.native.contenders import BLOCK, contenders
from covey.models.native.model import NativeModel
from covey.noise import noise
from tests.models import tiny_models

SIZES = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5000)


def drawn(seed: int, vocab: int) -> tuple[np.ndarray, ...]:
    """Logits of some rows, flat to steep, some masked, some not finite; their best tokens and values, temperatures and
    keys."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 6))
    logits = (rng.normal(size=(rows, vocab)) * rng.choice([0.0, 0.5, 3.0, 30.0])).astype(np.float32)
    if seed % 3 == 0:
        logits[rng.random(logits.shape) < 0.5] = -np.inf
        logits[:, 0] = 1.0
    best = logits.argmax(axis=1)
    values = logits[np.arange(rows), best].astype(np.float64)
    if seed % 5 == 0:
        logits[0, -1] = np.nan
    keys = noise.keys(noise.seed_words(rng.integers(0, 2**31, rows)), np.arange(rows) + seed, noise.Purpose.COUPLED)
    return logits, best[:, None], values[:, None], rng.choice([1e-5, 0.1, 1.0, 100.0], rows), keys


@pytest.mark.parametrize("vocab", SIZES)
def test_the_same_tokens_with_the_same_scores(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        given = drawn(seed, vocab)
        monkeypatch.setattr(noise, "_compiled", None)
        expected = noise.race(*given)
        noise.use(contenders)
        found = noise.race(*given)
        for name in ("rows", "tokens", "values", "scores"):
            assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True), (seed, name)


def test_a_process_that_computes_natively_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_compiled", None)
    folder = tiny_models.build(tmp_path, "llama")
    NativeModel(folder, dtype="float32", blocks=2, threads=1, numerics="fast")
    assert noise._compiled is contenders
