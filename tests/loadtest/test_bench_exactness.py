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
from loadtest.bench import exactness, exactness_models
from loadtest.bench.exactness_rows import BANDS, Counts, Differences, Rows, Seen, in_chunks, in_company
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


def compared(fake: Fake, *lengths: int) -> Differences:
    rows, expected = rows_of(fake, *lengths)
    tally = Differences()
    tally.compare(rows, expected, in_company(lengths, 200, np.random.default_rng(2)))
    tally.compare(rows, expected, in_chunks(0, lengths[0], 33))
    return tally


def test_every_position_is_compared_once_a_reading() -> None:
    tally = compared(Fake(), 700, 40, 300, 1)
    assert tally.total == Counts(700 + 40 + 300 + 1 + 700)
    for bands in (tally.by_length, tally.by_company):
        assert sum(counts.positions for counts in bands.values()) == tally.total.positions
    assert tally.by_length["1 to 255 keys"].positions == 2 * 255 + 40 + 255 + 1
    assert tally.by_company["alone, in other chunks"].positions >= 700


@pytest.mark.parametrize(("by", "ids"), [(1e-6, 0), (30.0, 1)])
def test_a_last_bit_in_company_of_long_rows_is_noticed(by: float, ids: int) -> None:
    tally = compared(Fake(least=600, by=by), 700, 650, 640, 630)
    assert tally.total.bits_differing > 0
    assert (tally.total.ids_differing > 0) == ids
    differing = {name for name, counts in tally.by_length.items() if counts.bits_differing}
    assert differing == {"512 to 767 keys"}
    assert not tally.by_company["alone, in other chunks"].bits_differing
    assert any(counts.bits_differing for counts in tally.by_company.values())


def test_bands_cover_all_lengths() -> None:
    tally = compared(Fake(), 1900)
    assert list(tally.as_json()["by_length"]) == [
        *(f"{low} to {high - 1} keys" for low, high in zip((1, *BANDS), BANDS)),
        f"{BANDS[-1]} keys and more",
    ]


def test_the_target_is_computed_as_it_is_served(tmp_path: Path) -> None:
    folder = str(tiny_models.build(tmp_path, "llama"))
    settings = TargetSettings(dtype="float32")
    native = exactness_models.load(folder, 2, settings)
    assert isinstance(native, NativeModel)
    assert (native.dtype, native.blocks) == ("float32", 2 * exactness_models.POSITIONS // native.block_size)
    assert isinstance(exactness_models.load(folder, 2, replace(settings, runtime="torch")), PagedModel)


def made_up() -> exactness.ExactnessFound:
    """Three positions of the target differ, and what came up in mode fast does not count."""
    measured = exactness.ExactnessFound()
    for name, mode, wrong in ((exactness.BUNDLED, "invariant", 3), ("other", "fast", 50)):
        measured.modes[name] = mode
        measured.tallies[name].total = Counts(100, wrong - 1, wrong)
        measured.tallies[name].by_length["1 to 255 keys"] = Counts(100, wrong - 1, wrong)
        measured.tallies[name].by_company["alone, in other chunks"] = Counts(100, wrong - 1, wrong)
    return measured


def test_the_bench_has_the_keys_it_promises(tmp_path: Path) -> None:
    session = Session("exactness", Wanted(tmp_path / "out.json"), Console(quiet=True))
    session.summarise = made_up().summary
    found = session.write()
    assert json.loads((tmp_path / "out.json").read_text()) == found
    counts = {"positions": 100, "ids_differing": 2, "bits_differing": 3}
    assert {key: found[key] for key in counts} == counts
    assert found["by_length"] == {"1 to 255 keys": counts}
    assert found["by_company"] == {"alone, in other chunks": counts}
    assert found["models"]["other"]["mode"] == "fast"
    exactness.show(found, Console(quiet=True), Path())


def test_what_was_not_measured_is_empty() -> None:
    found = exactness.ExactnessFound().summary()
    assert (found["positions"], found["by_length"]) == (0, {})
    exactness.show(found, Console(quiet=True), Path())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_finds_the_same_bits_in_all_models(tmp_path: Path) -> None:
    session = Session("exactness", Wanted(tmp_path / "out.json", size="quick"), Console(quiet=True))
    exactness.run(session)
    found = session.write()
    assert (found["ids_differing"], found["bits_differing"]) == (0, 0)
    assert set(found["models"]) == {exactness.BUNDLED, *exactness.SHAPES}
    if all(each["mode"] == "invariant" for each in found["models"].values()):
        assert found["positions"] >= exactness.QUICK_POSITIONS
