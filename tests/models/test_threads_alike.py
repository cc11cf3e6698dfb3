"""However many threads share a pass, a row's results do not depend on where their pieces end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.models.lanes import Lanes, Pass, chain_slots
from covey.models.model import PagedModel
from covey.models.product import by_rows
from tests.models.tiny_models import build

BLOCK = 16


@pytest.fixture(params=[2, 3, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def chunks(*pieces: tuple[int, int, int]) -> Pass:
    """Rows' tokens from and to a position; row r lies in blocks of its own."""
    tables = np.arange(64, dtype=np.int32).reshape(4, 16)
    sizes = [stop - start for _, start, stop in pieces]
    at = [np.arange(start, stop, dtype=np.int32) for _, start, stop in pieces]
    return Pass(
        np.concatenate([(7 * positions + row) % 60 for (row, _, _), positions in zip(pieces, at)]).astype(np.int32),
        np.concatenate(at),
        np.concatenate([chain_slots(tables[row], start, stop, BLOCK) for row, start, stop in pieces]),
        Lanes(
            np.append(0, np.cumsum(sizes)).astype(np.int32),
            np.array([stop for _, _, stop in pieces], np.int32),
            tables[[row for row, _, _ in pieces]],
        ),
        np.arange(sum(sizes), dtype=np.int32),
    )


@pytest.mark.parametrize(
    ("family", "width"), [("llama", 640), ("llama", 680), ("qwen2", 404), ("gemma2", 512), ("gpt_neox", 680)]
)
def test_activations_do_not_depend_on_company(tmp_path: Path, threads: int, family: str, width: int) -> None:
    folder = build(tmp_path / family, family, num_hidden_layers=2, intermediate_size=width)
    model = PagedModel(folder, dtype="float32", blocks=64, block_size=BLOCK)
    if model.numerics == "fast" and not model.fused:
        pytest.skip(f"with {threads} threads it says that it is not")
    assert model.numerics == "invariant"
    alone = [model.forward(chunks((row, 0, 61))).clone() for row in range(4)]
    together = model.forward(chunks(*((row, 0, 61) for row in range(4)))).split([61] * 4)
    for found, expected in zip(together, alone):
        assert torch.equal(found, expected)
    last = model.forward(chunks((1, 60, 61), (2, 60, 61)))
    assert torch.equal(last, torch.stack([alone[1][-1], alone[2][-1]]))


@pytest.mark.parametrize("width", [640, 404, 33, 40000])
def test_rows_of_a_function_are_the_same_in_any_number(threads: int, width: int) -> None:
    x = torch.randn(130, width, generator=torch.Generator().manual_seed(threads))
    whole = by_rows(torch.nn.functional.silu, x)
    for count in (1, 2, 61, 129):
        assert torch.equal(by_rows(torch.nn.functional.silu, x[:count]), whole[:count])
    assert torch.allclose(whole, torch.nn.functional.silu(x))
