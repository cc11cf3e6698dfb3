"""The bandit that chooses one request's drafter: its interface, and the parts that most policies share.

An arm is a drafter's index. A bandit knows no engine, no clock and no other request, and lives as long as its request.
`policies.Setting` holds its inputs besides its own parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from covey.contracts.errors import SettingError

# The reward that a policy learns from: block divergence (MetaSD's equation 4), which needs the drafter's distributions
# on the target; block efficiency, accepted over drafted tokens; or none.
Reward = Literal["divergence", "efficiency", ""]


class Bandit(Protocol):
    """Chooses one request's drafter among `arms`, round by round."""

    reward: ClassVar[Reward]

    def choose(self, allowed: Sequence[int]) -> int:
        """Return one of `allowed`, the arms that serve now; never empty. May draw random numbers. Calling it again
        before an `update` does not count as a round."""
        ...

    def update(self, arm: int, reward: float, tokens: int) -> None:
        """Learn from a round that `arm` drafted, even if another part chose it: a reward in [0, 1], and the tokens."""
        ...


class Unlearned:
    """The defaults of `Bandit` for a policy that learns nothing."""

    reward: ClassVar[Reward] = ""

    def update(self, arm: int, reward: float, tokens: int) -> None:
        """Learn nothing."""


def at_least(name: str, value: float, least: float) -> float:
    if not value >= least:
        raise SettingError(f"drafter policy: got {name} {value}, allowed: {least:g} or more")
    return value


def share(name: str, value: float) -> float:
    """Return the value. Raises SettingError unless it is above 0 and at most 1."""
    if not 0.0 < value <= 1.0:
        raise SettingError(f"drafter policy: got {name} {value}, allowed: above 0, at most 1")
    return value
