"""Cost tables (`covey_client.costs.table`) as the planner reads them, from files."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.errors import SettingError
from covey_client.costs.table import CostTable


def load_costs(path: str | Path) -> CostTable:
    """SettingError when the file is missing or is not a cost table of this version."""
    try:
        return CostTable.load(path)
    except (OSError, ValueError) as error:
        raise SettingError(f"cost table {path}: {error}") from None
