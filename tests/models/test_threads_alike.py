"""However many threads share a pass, a row's results do not depend on where their pieces end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.models.model import PagedModel
from covey.models.rows import by_rows
from tests.models.tiny_models import Reader, build, prompts


@pytest.fixture(params=[2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


CASES = [("qwen2", 404), ("gemma2", 512), ("llama", 640), ("gpt_neox", 680)]
SAMPLE = [(5, *CASES[0]), (2, *CASES[1])]


@pytest.mark.parametrize(
    ("threads", "family", "width"),
    [
        pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.slow)
        for case in ((threads, *each) for threads in (2, 5) for each in CASES)
    ],
    indirect=["threads"],
)
def test_activations_do_not_depend_on_company(tmp_path: Path, threads: int, family: str, width: int) -> None:
    folder = build(tmp_path / family, family, num_hidden_layers=2, intermediate_size=width)
    model = PagedModel(folder, dtype="float32", blocks=64, block_size=16)
    assert model._activations, "a part of another name is the library's own"
    if model.numerics == "fast":
        pytest.skip(f"with {threads} threads it says that it is not")
    assert model.numerics == "invariant"
    reader = Reader(model, prompts(np.random.default_rng(7), 97, 61, 61, 61, 61))
    alone = [reader.read([(row, 0, 61)])[0] for row in range(4)]
    for found, expected in zip(reader.read([(row, 0, 61) for row in range(4)]), alone):
        assert torch.equal(found, expected)
    for found, row in zip(reader.read([(1, 60, 61), (2, 60, 61)]), (1, 2)):
        assert torch.equal(found[0], alone[row][-1])


@pytest.mark.parametrize("width", [640, 404, 33, 40000])
def test_rows_of_a_function_are_the_same_in_any_number(threads: int, width: int) -> None:
    x = torch.randn(130, width, generator=torch.Generator().manual_seed(threads))
    whole = by_rows(torch.nn.functional.silu, x)
    for count in (1, 2, 61, 129):
        assert torch.equal(by_rows(torch.nn.functional.silu, x[:count]), whole[:count])
    assert torch.allclose(whole, torch.nn.functional.silu(x))
