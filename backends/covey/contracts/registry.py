"""The registry of what is chosen by name: length policies, drafter policies and kinds of drafters, one line each.

A line says where the thing is made, as MODULE:NAME. Only what is chosen is imported, so a profile is checked against
the names, and a start planned, without torch. The parameters of what makes it say what it needs: it is called with
those values that have their names (`covey.planner.policies.Setting`, `covey.drafters.Setting`).
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
    "covey": "covey.planner.covey:Covey",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of drafter."""

    made_by: str
    weights: bool = False  # it runs a model of the entry's folder, whose tokens must be the target's


DRAFTERS = {
    "head": Kind("covey.drafters.neural:load_head", weights=True),
    "neural": Kind("covey.drafters.neural:load", weights=True),
    "ngram": Kind("covey.drafters.ngram:NgramDrafter"),
    "suffix": Kind("covey.drafters.suffix:SuffixDrafter"),
    "remote": Kind("covey.star.remote:load"),
    "emulated": Kind("covey.emulated.opening:load_drafter"),
}

# Of each request's choice among drafters; parameters after a colon (`covey.bandits.drafters.policies`).
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
    """Return whether drafters of this kind have weights; an unknown kind has none."""
    return kind in DRAFTERS and DRAFTERS[kind].weights


def needs(made_by: str) -> Set[str]:
    """Return the names of what a thing is made of."""
    return inspect.signature(find(made_by)).parameters.keys()


def own_parameters(made_by: str) -> Mapping[str, str]:
    """Return the keyword-only parameters of what makes it and their types: not a setting's, but given with its name."""
    parameters = inspect.signature(find(made_by)).parameters.values()
    return {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}


def make(made_by: str, setting: object, **own: object) -> Any:
    """Return the thing, made of those of the setting's attributes that it needs and of its own parameters."""
    given = {name: getattr(setting, name) for name in needs(made_by) if hasattr(type(setting), name)}
    return find(made_by)(**given, **own)


def find(made_by: str) -> Any:
    """Return the object that MODULE:NAME refers to."""
    module, _, name = made_by.partition(":")
    return getattr(import_module(module), name)
