"""The bandit that chooses one request's drafter: its interface, and the parts that most policies share.

An arm is a drafter, by its index. A bandit knows no engine, no clock and no other request, and lives as long as its
request does. What it needs besides its own parameters is in `policies.Setting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from covey.contracts.errors import SettingError

# What a policy wants to be told: the block divergence reward (MetaSD's equation 4), which needs the drafter's
# distributions on the target; block efficiency, accepted over drafted tokens; or nothing.
Reward = Literal["divergence", "efficiency", ""]


class Bandit(Protocol):
    """Chooses one request's drafter among `arms`, round by round."""

    reward: ClassVar[Reward]

    def choose(self, allowed: Sequence[int]) -> int:
        """Return one of `allowed`, the arms that serve now; never empty. May draw random numbers. Asking again without
        an `update` between is no round."""
        ...

    def update(self, arm: int, reward: float, tokens: int) -> None:
        """Learn that `arm` drafted a round, whether or not it was chosen here: reward in [0, 1], and tokens emitted."""
        ...


class Unlearned:
    """The parts of `Bandit` for a policy that learns nothing."""

    reward: ClassVar[Reward] = ""

    def update(self, arm: int, reward: float, tokens: int) -> None:
        """Learn nothing."""


def at_least(name: str, value: float, least: float) -> float:
    if not value >= least:
        raise SettingError(f"drafter policy: got {name} {value}, allowed: {least:g} or more")
    return value


def share(name: str, value: float) -> float:
    """Return a parameter above 0 and at most 1."""
    if not 0.0 < value <= 1.0:
        raise SettingError(f"drafter policy: got {name} {value}, allowed: above 0, at most 1")
    return value
