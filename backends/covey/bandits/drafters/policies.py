"""Makes the bandits over drafters that `covey.contracts.registry` lists, by names such as `ucb-bd` and `fixed:NAME`.

A policy's own parameters follow a colon, separated by commas, in the order of its constructor's keyword-only ones.
Missing ones keep their defaults. `d-ucb:0.1,0.9` has beta 0.1 and gamma 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from covey.bandits.drafters.choice import Bandit, Reward
from covey.contracts import registry
from covey.contracts.errors import SettingError

READ = {"float": float, "int": int, "str": str}


@dataclass(frozen=True, slots=True)
class Setting:
    """The values that a bandit's constructor may ask for by name."""

    names: Sequence[str]  # the drafters, in the order of the arms
    rng: np.random.Generator
    max_depth: int  # N_max, of a draft
    max_tokens: int  # B, the most that the request may emit

    @property
    def arms(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its own parameters; makes a bandit for each request."""

    name: str
    made_by: str
    own: Mapping[str, float | int | str]

    @property
    def reward(self) -> Reward:
        return cast(Reward, registry.find(self.made_by).reward)

    def make(self, setting: Setting) -> Bandit:
        """Return a new bandit. Raises SettingError if a parameter is out of range; make one at load to find out."""
        return cast(Bandit, registry.make(self.made_by, setting, **self.own))


def find(text: str) -> Policy:
    """Return the policy that `text` names. Raises SettingError, which names the allowed policies or parameters."""
    name, _, values = text.partition(":")
    made_by = registry.DRAFTER_POLICIES.get(name)
    if made_by is None:
        raise SettingError(f"drafter policy: got {text!r}, allowed: {', '.join(registry.DRAFTER_POLICIES)}")
    kinds = registry.own_parameters(made_by)
    given = values.split(",") if values else []
    if len(given) > len(kinds):
        raise SettingError(f"drafter policy: got {text!r}, {name} has {len(kinds)} parameters: {', '.join(kinds)}")
    own = {}
    for value, (parameter, kind) in zip(given, kinds.items()):
        try:
            own[parameter] = READ[kind](value)
        except ValueError:
            raise SettingError(f"drafter policy: got {text!r}, {parameter} is no {kind}: {value!r}") from None
    return Policy(name, made_by, own)
