"""What is chosen by name can be made of what there is, and names cost no import."""

from __future__ import annotations

import subprocess
import sys
from inspect import Parameter, signature

import pytest

from covey import drafters
from covey.bandits.drafters import policies as drafter_policies
from covey.contracts import registry
from covey.contracts.errors import SettingError
from covey.planner import policies


@pytest.mark.parametrize(
    ("made_by", "setting"),
    [
        *((made_by, policies.Setting) for made_by in registry.POLICIES.values()),
        *((made_by, drafter_policies.Setting) for made_by in registry.DRAFTER_POLICIES.values()),
        *((kind.made_by, drafters.Setting) for kind in registry.DRAFTERS.values()),
    ],
)
def test_nothing_needs_what_is_not_there(made_by: str, setting: type) -> None:
    parameters = signature(registry.find(made_by)).parameters
    assert registry.needs(made_by) == set(parameters)
    assert {name for name, each in parameters.items() if each.default is Parameter.empty} <= set(dir(setting))


def test_policies_that_price_switching_start_from_costs() -> None:
    names = [name.replace(":k", ":2") for name in registry.POLICIES]
    assert [name for name in names if policies.starts_from_costs(name)] == ["nightjar-v1", "nightjar", "adaptive"]
    with pytest.raises(SettingError, match=r"got 'fixed:k', allowed: off, fixed:k, table, .* adaptive"):
        policies.starts_from_costs("fixed:k")


def test_names_and_lookups_need_no_torch() -> None:
    modules = "covey.contracts.profile", "covey.planner.build", "covey.launcher.preflight", "covey.drafters.ngram"
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
