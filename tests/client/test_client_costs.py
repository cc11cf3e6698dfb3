"""The table that a server measures, as a file."""

from __future__ import annotations

import json
from pathlib import Path

from covey.planner.cost_table import load_costs
from covey_client.costs.table import CostTable

TABLE = CostTable(
    name="mine",
    origin="made up",
    verify=((1, 1, 0.01), (1, 3, 0.01), (8, 8, 0.01), (8, 24, 0.01)),
    overhead=((1, 0.003), (8, 0.003)),
    draft={"a": ((1, 2, 0.004), (8, 2, 0.004)), "b": ((1, 2, 0.004), (8, 2, 0.004))},
    switch={"a": ((17, 1, 0.00155),)},
    plain=((1, 0.013), (8, 0.013)),
)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "mine.json")
    assert load_costs(tmp_path / "mine.json") == TABLE
    assert CostTable.read(json.loads(json.dumps(TABLE.plain_data()))) == TABLE
