"""What is chosen by its name: length policies and kinds of drafters, one line each.

A line says where the thing is made, as MODULE:NAME. Only what is chosen is imported, so a profile is checked against
the names, and a start planned, without torch. The parameters of what makes it say what it needs: it is called with
those values that have their names (`covey.planner.policies.Setting`, `covey.drafters.Setting`).
"""

from __future__ import annotations

import inspect
from collections.abc import Set
from dataclasses import dataclass
from importlib import import_module
from typing import Any

POLICIES = {
    "off": "covey.bandits.fixed:Fixed",
    "fixed:k": "covey.bandits.fixed:Fixed",
    "table": "covey.bandits.fixed:Table",
    "ada-bingreedy": "covey.bandits.bingreedy:AdaBinGreedy",
    "banditspec": "covey.bandits.banditspec:BanditSpec",
    "dsd": "covey.bandits.dsd:DSD",
    "tetris": "covey.bandits.tetris:Tetris",
    "linucb": "covey.bandits.linear:LinUCB",
    "lints": "covey.bandits.linear:LinTS",
    "nightjar-v1": "covey.bandits.nightjar:NightjarV1",
    "nightjar": "covey.bandits.nightjar:Nightjar",
    "covey": "covey.planner.covey:Covey",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of drafter."""

    made_by: str
    weights: bool = False  # torch runs a model of the entry's folder, whose vocabulary must be the target's


DRAFTERS = {
    "neural": Kind("covey.drafters.neural:load", weights=True),
    "ngram": Kind("covey.drafters.ngram:NgramDrafter"),
    "suffix": Kind("covey.drafters.suffix:SuffixDrafter"),
    "emulated": Kind("covey.emulated.opening:load_drafter"),
}


def has_weights(kind: str | None) -> bool:
    """Of a kind of drafter; an unknown one has none."""
    return kind in DRAFTERS and DRAFTERS[kind].weights


def needs(made_by: str) -> Set[str]:
    """The names of what a thing is made of."""
    return inspect.signature(_find(made_by)).parameters.keys()


def make(made_by: str, setting: object) -> Any:
    """The thing, made of those of the setting's attributes that it needs."""
    given = {name: getattr(setting, name) for name in needs(made_by) if hasattr(type(setting), name)}
    return _find(made_by)(**given)


def _find(made_by: str) -> Any:
    module, _, name = made_by.partition(":")
    return getattr(import_module(module), name)
