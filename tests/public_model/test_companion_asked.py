"""When an engine looks up what texts repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covey.contracts import profile
from covey.contracts.types import Open, Sampling
from covey.drafters.companion import LookedUp
from covey.drafters.ngram import NgramLookup
from covey.drafters.suffix import SuffixLookup
from covey.public_model.build import Builder


def made(settings: dict[str, Any]) -> LookedUp | None:
    """What a request gets of an engine with these settings."""
    none: Any = None
    chosen = profile.of_tables(settings, "any", "any.toml")
    builder = Builder("covey", chosen, none, none, none, none, none, "", "", None)
    found = builder._companion()
    if found is None:
        return None
    text = found(Open(1, np.array([1, 2], np.int32), 2, Sampling()))
    assert isinstance(text, LookedUp)
    return text


@pytest.mark.parametrize(("kind", "lookup"), [({}, SuffixLookup), ({"lookup": "ngram"}, NgramLookup)])
def test_policy_covey_has_the_lookup_that_the_profile_names(kind: dict[str, str], lookup: type) -> None:
    found = made({"speculation": kind})
    assert found is not None
    assert isinstance(found.lookup, lookup)


@pytest.mark.parametrize(
    "settings",
    [
        {"speculation": {"lookup": "off"}},
        {"speculation": {"policy": "nightjar"}},
        {"speculation": {"selection": "worth"}},
        {"target": {"kind": "emulated"}},
    ],
)
def test_where_the_setting_says_that_there_is_none_there_is_none(settings: dict[str, Any]) -> None:
    assert made(settings) is None
