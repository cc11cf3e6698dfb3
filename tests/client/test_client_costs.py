"""`covey profile`: the table that a server measures, as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.planner.cost_table import load_costs
from covey_client.cli import main
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


def test_a_table_that_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.json").write_text("{}")
    assert main(["profile", str(tmp_path / "mine.json")]) == 2
    assert "--force" in capsys.readouterr().err


def test_no_server_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tmp_path / "mine.json"), "--http-url", "127.0.0.1:9"]) == 5
    assert capsys.readouterr().err.count("\n") == 1
