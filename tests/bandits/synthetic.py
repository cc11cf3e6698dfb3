"""Drafters that are nothing but their acceptance, and requests that bandits over them serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from covey.bandits.drafters import policies
from covey.bandits.drafters.choice import Bandit

DEPTH = 5  # N_max, as in MetaSD's experiments
CONCENTRATION = 4.0  # of the acceptance of one position about its mean: Beta(4 a, 4 (1 - a))
NAMES = ("general", "code", "math", "translate", "chat")


def setting(seed: int, names: Sequence[str] = NAMES, max_tokens: int = 512) -> policies.Setting:
    return policies.Setting(names, np.random.default_rng((7, seed)), DEPTH, max_tokens)


def make(name: str, seed: int = 0, arms: int = len(NAMES), max_tokens: int = 512) -> Bandit:
    names = [*NAMES, *(f"d{index}" for index in range(arms))][:arms]
    return policies.find(name).make(setting(seed, names, max_tokens))


@dataclass
class Played:
    """What became of a request, round by round."""

    arms: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def switches(self) -> int:
        return sum(one != other for one, other in zip(self.arms, self.arms[1:]))

    def share(self, arm: int, first: int = 0, end: int | None = None) -> float:
        """Of rounds first..end in which the arm drafted."""
        part = self.arms[first:end]
        return part.count(arm) / len(part)


def play(
    bandit: Bandit,
    acceptance: Callable[[int], Sequence[float]],
    *,
    rounds: int,
    seed: int = 0,
    allowed: Callable[[int], Sequence[int]] | None = None,
) -> Played:
    """So many rounds. `acceptance(round)`: of each arm, 1 - TV on average.

    All arms draw in every round, so that what an arm gets does not depend on what was played before it.
    """
    rng, played = np.random.default_rng((11, seed)), Played()
    while len(played.arms) < rounds:
        alphas = np.asarray(acceptance(len(played.arms)))
        positions = rng.beta(CONCENTRATION * alphas, CONCENTRATION * (1 - alphas), (DEPTH, len(alphas)))
        kept = np.cumprod(rng.random(positions.shape) < positions, axis=0).sum(axis=0)
        rewards = positions.mean(axis=0) if bandit.reward == "divergence" else kept / DEPTH
        arms = range(len(alphas)) if allowed is None else allowed(len(played.arms))
        arm = bandit.choose(arms)
        assert arm in arms
        played.arms.append(arm)
        played.tokens.append(int(kept[arm]) + 1)
        bandit.update(arm, float(rewards[arm]), played.tokens[-1])
    return played


def always(*alphas: float) -> Callable[[int], Sequence[float]]:
    return lambda _round: alphas
