"""The paged model writes what transformers' own loop writes, whatever the paging, chunks and batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import FAMILIES, Reader, build, generate, prompts
from transformers import AutoModelForCausalLM

from covey.models.model import PagedModel
from covey.models.modules import Modules


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_generate(family: str, tmp_path: Path) -> None:
    folder = build(tmp_path, family)
    rng = np.random.default_rng(1)
    rows = prompts(rng, 97, 3, 30, 17)
    expected = [generate(folder, row, 12) for row in rows]
    assert len({token for row in expected for token in row}) > 6, "the model should not repeat itself"
    model = PagedModel(folder, dtype="float64", device="cpu", blocks=64, block_size=4, max_pass_tokens=64)
    assert Reader(model, rows, room=12).greedy(12, 7, rng) == expected


def test_a_family_that_changes_beyond_what_is_tried_at_load_is_the_same_there(tmp_path: Path) -> None:
    """The family's queries grow beyond 64 positions, which the trial at loading does not reach."""
    folder = build(tmp_path, "ministral3")
    rng = np.random.default_rng(4)
    rows = prompts(rng, 97, 130, 90)
    expected = [generate(folder, row, 8) for row in rows]
    model = PagedModel(folder, dtype="float64", device="cpu", blocks=80, block_size=4, max_pass_tokens=64)
    assert Reader(model, rows, room=8).greedy(8, 40, rng) == expected


@pytest.mark.parametrize("limit", [17, 47])
def test_models_load_for_odd_pass_sizes(limit: int, tmp_path: Path) -> None:
    """Padding of the trial at loading is not compared."""
    PagedModel(build(tmp_path, "gemma2"), dtype="float32", device="cpu", blocks=40, block_size=4, max_pass_tokens=limit)


def test_copied_slots_carry_the_row(tmp_path: Path) -> None:
    folder = build(tmp_path, "llama")
    (row,) = prompts(np.random.default_rng(2), 97, 21)
    model = PagedModel(folder, dtype="float32", device="cpu", blocks=40, block_size=4)
    reader = Reader(model, [row])
    reader.read([(0, 0, 20)])
    (expected,) = reader.read([(0, 20, 21)])
    old = reader.tables[0]
    reader.tables[0] = np.roll(old, 1)  # every block moves to where another was
    model.copy_slots(
        (old[:, None] * 4 + np.arange(4)).reshape(-1), (reader.tables[0][:, None] * 4 + np.arange(4)).reshape(-1)
    )
    (found,) = reader.read([(0, 20, 21)])
    assert found.equal(expected)


def test_a_module_in_memory_is_run_as_its_folder_is(tmp_path: Path) -> None:
    folder = build(tmp_path, "llama")
    (row,) = prompts(np.random.default_rng(5), 97, 21)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
    found, expected = (
        Reader(PagedModel(source, dtype="float32", device="cpu", blocks=40, block_size=4, numerics="fast"), [row])
        for source in (Modules.of(module, "in memory"), folder)
    )
    assert found.read([(0, 0, 21)])[0].equal(expected.read([(0, 0, 21)])[0])


def test_a_pass_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    model = PagedModel(build(tmp_path, "llama"), device="cpu", blocks=8, max_pass_tokens=16)
    (row,) = prompts(np.random.default_rng(3), 97, 17)
    with pytest.raises(ValueError, match="built for 16"):
        Reader(model, [row]).read([(0, 0, 17)])
    row[0] = 97
    with pytest.raises(ValueError, match="tokens: got 97, allowed: ids from 0 to 96"):
        Reader(model, [row]).read([(0, 0, 5)])
