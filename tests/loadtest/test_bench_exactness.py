"""The bench `exactness`: what its comparisons notice, and the JSON that it promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from rich.console import Console

from covey.contracts.profile import TargetSettings
from covey.models.lanes import Lanes, Pass
from covey.models.model import PagedModel
from covey.models.native.model import NativeModel
from loadtest.bench import exactness
from loadtest.bench.exactness_rows import Counts, Rows, Seen, in_chunks, in_company
from loadtest.bench.session import Session, Wanted
from tests.models import tiny_models

VOCAB = 50


class Fake:
    """Logits are a function of token and position, in passes of several rows `by` off from position `least` on."""

    blocks, block_size = 400, 16

    def __init__(self, least: int = 0, by: float = 0.0) -> None:
        self.least, self.by = least, by

    def forward(self, work: Pass) -> torch.Tensor:
        assert isinstance(work.lanes, Lanes)
        seeds = (work.tokens.astype(np.int64) * 4099 + work.positions) % 65521
        values = np.sin(np.outer(seeds, np.arange(1, VOCAB + 1)) * 0.7) * 4
        if work.lanes.rows > 1:
            values[work.positions >= self.least, 7] += self.by
        return torch.from_numpy(values.astype(np.float32))


def rows_of(fake: Fake, *lengths: int) -> tuple[Rows, list[Seen]]:
    rng = np.random.default_rng(1)
    rows = Rows(cast(PagedModel, fake), [rng.integers(0, VOCAB, length).astype(np.int32) for length in lengths])
    return rows, [rows.alone(row, 64) for row in range(len(lengths))]


def compared(fake: Fake, *lengths: int) -> Counts:
    rows, expected = rows_of(fake, *lengths)
    counts = Counts()
    counts.compare(rows, expected, in_company(lengths, 200, np.random.default_rng(2)))
    counts.compare(rows, expected, in_chunks(0, lengths[0], 33))
    return counts


def test_every_position_is_compared_once_a_reading() -> None:
    assert compared(Fake(), 700, 40, 300, 1) == Counts(700 + 40 + 300 + 1 + 700)


@pytest.mark.parametrize(("by", "ids"), [(1e-6, 0), (30.0, 1)])
def test_a_last_bit_in_company_is_noticed(by: float, ids: int) -> None:
    counts = compared(Fake(least=600, by=by), 700, 650, 640, 630)
    assert 0 < counts.bits_differing <= 100 + 50 + 40 + 30
    assert (counts.ids_differing > 0) == ids


def test_the_target_is_computed_as_it_is_served(tmp_path: Path) -> None:
    folder = str(tiny_models.build(tmp_path, "llama"))
    settings = TargetSettings(dtype="float32")
    native = exactness.opened(folder, 2, settings)
    assert isinstance(native, NativeModel)
    assert (native.dtype, native.blocks) == ("float32", 2 * exactness.ROW_POSITIONS // native.block_size)
    assert isinstance(exactness.opened(folder, 2, replace(settings, runtime="torch")), PagedModel)


def test_the_bench_has_the_keys_it_promises(tmp_path: Path) -> None:
    session = Session("exactness", Wanted(tmp_path / "out.json"), Console(quiet=True))
    session.summarise = exactness.ExactnessFound("invariant", Counts(100, 2, 3)).summary
    found = session.write()
    assert json.loads((tmp_path / "out.json").read_text()) == found
    expected = {"mode": "invariant", "positions": 100, "ids_differing": 2, "bits_differing": 3}
    assert {key: found[key] for key in expected} == expected
    exactness.show(found, Console(quiet=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_finds_the_same_bits(tmp_path: Path) -> None:
    session = Session("exactness", Wanted(tmp_path / "out.json", quick=True), Console(quiet=True))
    exactness.run(session)
    found = session.write()
    assert (found["ids_differing"], found["bits_differing"]) == (0, 0)
    assert found["positions"] >= exactness.QUICK_POSITIONS
