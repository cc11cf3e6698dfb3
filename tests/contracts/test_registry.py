"""Names of policies and drafters cost no import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from covey.contracts import registry
from covey.contracts.errors import SettingError
from covey.planner import policies


def test_policies_that_price_switching_start_from_costs() -> None:
    names = [name.replace(":k", ":2") for name in registry.POLICIES]
    assert [name for name in names if policies.starts_from_costs(name)] == ["nightjar-v1", "nightjar", "adaptive"]
    with pytest.raises(SettingError, match=r"got 'fixed:k', allowed: off, fixed:k, table, .* adaptive"):
        policies.starts_from_costs("fixed:k")


def test_names_and_lookups_need_no_torch() -> None:
    modules = "covey.contracts.profile", "covey.planner.build", "covey.launcher.preflight", "covey.drafters.ngram"
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
