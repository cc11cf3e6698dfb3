"""Reads cost tables (`covey_client.costs.table`) from files."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.errors import SettingError
from covey_client.costs.table import CostTable


def load_costs(path: str | Path) -> CostTable:
    """Return a file's cost table. Raises SettingError if it is missing or no cost table of this version."""
    try:
        return CostTable.load(path)
    except (OSError, ValueError) as error:
        raise SettingError(f"cost table {path}: {error}") from None
