"""The registry of everything that is chosen by name: length policies, drafter policies and kinds of drafters.

An entry names its maker as MODULE:NAME. Only chosen entries are imported, so a profile can be checked and a start
planned without torch. A maker is called with the values that its parameters name (`covey.planner.policies.Setting`,
`covey.drafters.Setting`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Set
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
    "adaserve": "covey.planner.adaserve:AdaServe",
    "adaptive": "covey.planner.adaptive:Adaptive",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of drafter."""

    made_by: str
    weights: bool = False  # it runs a model in the entry's folder with the target's tokens


DRAFTERS = {
    "head": Kind("covey.drafters.neural:load_head", weights=True),
    "neural": Kind("covey.drafters.neural:load", weights=True),
    "ngram": Kind("covey.drafters.ngram:NgramDrafter"),
    "suffix": Kind("covey.drafters.suffix:SuffixDrafter"),
    "remote": Kind("covey.star.remote:load"),
    "emulated": Kind("covey.emulated.opening:load_drafter"),
}

# Policies that choose a drafter for each request; parameters follow a colon (`covey.bandits.drafters.policies`).
DRAFTER_POLICIES = {
    "fixed": "covey.bandits.drafters.plain:Fixed",
    "random": "covey.bandits.drafters.plain:Random",
    "ucb-bd": "covey.bandits.drafters.ucb:BlockDivergence",
    "ucb-bd-theorem": "covey.bandits.drafters.ucb:Theorem",
    "ucb-be": "covey.bandits.drafters.ucb:BlockEfficiency",
    "exp3": "covey.bandits.drafters.exp3:EXP3",
    "sh": "covey.bandits.drafters.halving:SequentialHalving",
    "petc": "covey.bandits.drafters.halving:PETC",
    "d-ucb": "covey.bandits.drafters.discounted:DiscountedUCB",
    "sw-ucb": "covey.bandits.drafters.sliding:SlidingWindowUCB",
}


def has_weights(kind: str | None) -> bool:
    """Return whether drafters of this kind have weights; False for an unknown kind."""
    return kind in DRAFTERS and DRAFTERS[kind].weights


def needs(made_by: str) -> Set[str]:
    """Return the names of a maker's parameters."""
    return inspect.signature(find(made_by)).parameters.keys()


def own_parameters(made_by: str) -> Mapping[str, str]:
    """Return a maker's keyword-only parameters and their types: the user gives them with the name, not as settings."""
    parameters = inspect.signature(find(made_by)).parameters.values()
    return {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}


def make(made_by: str, setting: object, **own: object) -> Any:
    """Call the maker with the attributes of the setting that it needs and with its own parameters."""
    given = {name: getattr(setting, name) for name in needs(made_by) if hasattr(type(setting), name)}
    return find(made_by)(**given, **own)


def find(made_by: str) -> Any:
    """Return the object that MODULE:NAME refers to."""
    module, _, name = made_by.partition(":")
    return getattr(import_module(module), name)
