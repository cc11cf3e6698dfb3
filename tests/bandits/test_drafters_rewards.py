"""What block divergence and block efficiency tell a bandit, under the rejection rule (MetaSD's Lemmas 2, 5 and 6).

Drafts are judged by the rule that the target runs. Under the coupled rule a token is accepted with another probability,
and none of this holds.
"""

from __future__ import annotations

import numpy as np
import pytest

from covey.noise.noise import Reals
from covey.sampling.rejection import accept

DEPTH, ROUNDS, VOCAB = 5, 60_000, 12


def rewards(noise: float, seed: int) -> tuple[Reals, Reals, float]:
    """BD and BE of independent rounds, and the mean of 1 - TV: the drafter has the target's weights times noise."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(VOCAB, 0.7), (ROUNDS, DEPTH))
    q = p * np.exp(noise * rng.standard_normal(p.shape))
    q /= q.sum(axis=-1, keepdims=True)
    drawn = (q.cumsum(axis=-1) < rng.random((ROUNDS, DEPTH, 1))).sum(axis=-1, keepdims=True).clip(max=VOCAB - 1)
    of = [np.take_along_axis(each, drawn, axis=-1)[..., 0] for each in (p, q)]
    kept = np.cumprod(accept(rng.random((ROUNDS, DEPTH)), *of), axis=1).sum(axis=1)
    overlap = 1.0 - 0.5 * np.abs(p - q).sum(axis=-1)
    return overlap.mean(axis=1), kept / DEPTH, float(overlap.mean())


@pytest.mark.parametrize("noise", [0.3, 0.8, 1.5, 3.0])
def test_block_efficiency_follows_from_block_divergence(noise: float) -> None:
    """Lemma 2 (13) and the closed forms of Lemma 5, within four standard errors."""
    bd, be, alpha = rewards(noise, seed=1)
    n = DEPTH
    mean = (alpha - alpha ** (n + 1)) / (n * (1 - alpha))
    variance = (
        alpha
        * (1 - (2 * n + 1) * alpha**n + (2 * n + 1) * alpha ** (n + 1) - alpha ** (2 * n + 1))
        / (n * (1 - alpha)) ** 2
    )
    assert bd.mean() == pytest.approx(alpha)
    assert be.mean() == pytest.approx((1 - alpha**n) / (n * (1 - alpha)) * bd.mean(), abs=4 * be.std() / ROUNDS**0.5)
    assert be.mean() == pytest.approx(mean, abs=4 * be.std() / ROUNDS**0.5)
    assert be.var() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("noise", [0.3, 0.8, 1.5, 3.0])
def test_block_divergence_varies_less(noise: float) -> None:
    """Lemma 6, and what Table 2 shows: a lower variance, and no zeros."""
    bd, be, _ = rewards(noise, seed=2)
    assert bd.var() <= 1 / (4 * DEPTH)
    assert bd.var() < 0.5 * be.var()
    assert (bd > 0).all()
    assert (be == 0).mean() > 0.02


def test_block_divergence_tells_drafters_apart_in_fewer_rounds() -> None:
    """Theorem 1: gap^2 over variance."""
    better, worse = rewards(0.8, seed=3), rewards(1.5, seed=4)
    signal = [(one.mean() - two.mean()) ** 2 / max(one.var(), two.var()) for one, two in zip(better[:2], worse[:2])]
    assert signal[0] > 3 * signal[1]
