"""A token's logits are the same bits whatever else is in the pass: batches, chunks, drafts, trees, pool layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.models.model import PagedModel
from tests.models.bits import check, check_tree
from tests.models.tiny_models import EXPERTS, FAMILIES, MORE, build, prompts

BUNDLED = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}


@pytest.fixture(autouse=True, scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bundled(threads: int, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    layers = {} if threads > 1 else {"num_hidden_layers": 4}  # all have the same shapes
    folder = build(tmp_path_factory.mktemp(f"bundled{threads}"), "llama", torch.bfloat16, **BUNDLED | layers)
    return PagedModel(folder, device="cpu", dtype="bfloat16", blocks=400, numerics="auto")


@pytest.mark.slow
def test_bundled_shape_is_invariant(bundled: PagedModel) -> None:
    if bundled.numerics != "invariant":
        pytest.skip("bfloat16 is not invariant on this machine")
    rows = prompts(np.random.default_rng(4), 4096, 40, 33, 7, 70)
    check(bundled, rows, 14, 4)
    check_tree(bundled, rows[3], 4)


COVERING = [("llama", "bfloat16"), ("gemma2", "bfloat16"), ("gpt_neox", "bfloat16"), ("gemma2", "float32")]
COVERING += [(family, "float32") for family in ("granite", "cohere2", "nemotron")]
OTHERS = [("llama", "float32"), *((family, "bfloat16") for family in FAMILIES)]
OTHERS += [(family, "float32") for family in MORE if family not in EXPERTS]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*COVERING, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS if each not in COVERING)],
)
def test_families_are_invariant(family: str, dtype: str, threads: int, tmp_path: Path) -> None:
    """With two threads, of which `make test` knows nothing, in longer rows and more passes."""
    folder = build(tmp_path, family)
    model = PagedModel(folder, dtype=dtype, device="cpu", blocks=90, block_size=4, max_pass_tokens=200)
    if model.numerics != "invariant":
        assert family not in MORE or threads > 1
        pytest.skip(f"{dtype} is not invariant on this machine")
    lengths, passes, nodes = ((30, 9, 41), 25, 12) if threads > 1 else ((17, 5, 29), 12, 8)
    rows = prompts(np.random.default_rng(6), 97, *lengths)
    check(model, rows, passes, 6)
    check_tree(model, rows[0], 6, nodes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_bundled_shape_is_invariant_in_many_passes(bundled: PagedModel) -> None:
    if bundled.numerics != "invariant":
        pytest.skip("bfloat16 is not invariant on this machine")
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = prompts(rng, 4096, *rng.integers(1, 300, 12).tolist())
        check(bundled, rows, 60, seed)
        check_tree(bundled, rows[0], seed)
