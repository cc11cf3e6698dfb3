"""A smoke run of the bench `tax` against the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.bench.__main__ import main

pytestmark = pytest.mark.e2e


@pytest.mark.slow
def test_a_quick_run_measures_every_competitor(tmp_path: Path) -> None:
    out = tmp_path / "tax.json"
    assert main(["tax", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    for way in ("unary", "stream"):
        assert all(found["triton_over_inprocess"][way][c] > 0 for c in ("1", "8", "32"))
    for door in ("front", "openai"):
        assert all(found[f"{door}_over_stream"][c] > 0 for c in ("1", "8", "32"))
        assert all(found["door_us_per_token"][door][c] > 0 for c in ("1", "8", "32"))
    assert all(found["triton_over_hf"][c] > 0 for c in ("1", "8", "32"))
    assert all(found["chunk_tokens_p99"][c] >= 1 for c in ("1", "8", "32"))
    assert all(found["loop_overhead_ms"][c] > 0 for c in ("1", "8", "32"))
    assert found["idle_server_cores"] < 0.5
