"""A layer's products, against the same in float64. `tests/gpu/test_device_model.py` compares what lies between them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from covey.gpu.kernels import INTERPRETED, PRECISION
from covey.gpu.kernels.products import WIDE, Block, fixed, multiply
from tests.hopper import Variant, compile_for_hopper
from tests.interpreted import sum_in_order

WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ALLOWED = {torch.float32: 1e-6 if INTERPRETED else 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(rng: np.random.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(WHERE, dtype)


class Product:
    """Random factors, none of whose sizes is a multiple of what is read at a time."""

    depth, width = 300, 50

    def __init__(self, rows: int, dtype: torch.dtype, biased: int, gated: int, added: int) -> None:
        rng = np.random.default_rng(rows)
        self.x, self.weight = drawn(rng, dtype, rows, 300), drawn(rng, dtype, self.width * (1 + gated), self.depth) / 17
        self.bias = drawn(rng, dtype, len(self.weight)) if biased else None
        self.before = drawn(rng, dtype, rows, self.width) if added else None
        self.gated = bool(gated)

    def found(self, block: Block, rows: slice = slice(None)) -> torch.Tensor:
        x = self.x[rows].contiguous()
        out = torch.full((len(x), self.width), torch.nan, dtype=x.dtype, device=WHERE)
        if self.before is not None:
            out.copy_(self.before[rows])  # the sum is in place
        multiply(block, x, self.weight, self.bias, out, added=self.before is not None, gated=self.gated)
        return out

    def expected(self) -> torch.Tensor:
        expected = self.x.cpu().double() @ self.weight.cpu().double().t()
        if self.bias is not None:
            expected += self.bias.cpu().double()
        if self.gated:
            first, second = expected.chunk(2, 1)
            expected = first * torch.sigmoid(first) * second
        return expected if self.before is None else expected + self.before.cpu().double()


KINDS = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]  # bias, gate, sum
SAMPLE = list(zip([50] * 4, KINDS, [*ALLOWED, torch.bfloat16]))


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 150])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_products(kind: tuple[int, int, int], rows: int, dtype: torch.dtype) -> None:
    made = Product(rows, dtype, *kind)
    found = made.found(fixed(50, dtype.itemsize)).cpu().double()
    expected = made.expected()
    assert (found - expected).norm() <= 4 * ALLOWED[dtype] * expected.norm()  # rounded up to four times on the way


@pytest.mark.parametrize(
    ("columns", "kind", "dtype"),
    [
        pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.slow)
        for case in product([50, WIDE], KINDS, ALLOWED)
    ],
    ids=str,
)
def test_a_row_has_the_same_bits_in_any_company(
    columns: int, kind: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    sum_in_order(monkeypatch)
    made, block = Product(150, dtype, *kind), fixed(columns, dtype.itemsize, gated=bool(kind[1]))
    whole = made.found(block)
    for start, stop in ((0, 1), (149, 150), (60, 70), (63, 130), (1, 150)):
        assert torch.equal(made.found(block, slice(start, stop)), whole[start:stop])


@pytest.mark.slow
def test_they_compile_for_a_gpu_with_wide_loads() -> None:
    pool = dict.fromkeys(("qkv", "queries", "pool", "cosines", "sines", "query_norm", "key_norm"), "*bf16")
    numbers = {"offsets": "*i64", "slots": "*i32", "positions": "*i32", "layer_offset": "i64", "epsilon": "fp32"}
    turning: dict[str, object] = {
        "HEADS": 28, "KV_HEADS": 4, "DIM": 128, "BLOCK_SIZE": 16, "BLOCK_STRIDE": 16384, "SEGMENT": 64,
        "D": 128, "GROUP": 4
    }  # fmt: skip
    halves = dict.fromkeys(("stream", "delta", "weight", "out"), "*bf16") | {"epsilon": "fp32"}
    made = compile_for_hopper(
        *(
            Variant(
                "covey.gpu.kernels.rotary", "turn_and_keep", pool | numbers, turning | {"NORMED": with_norms}, 1, 2,
                ("layer_offset",),
            )
            for with_norms in (False, True)
        ),
        Variant("covey.gpu.kernels.norms", "add_and_norm", halves, {"ADDED": True, "WIDTH": 3584, "W": 4096}, 8),
        *(
            Variant(
                "covey.gpu.kernels.products",
                "block_product",
                dict.fromkeys(("x", "weight", "bias", "out"), "*bf16") | {"rows": "i32"},
                {"K": depth, "N": width, "BIASED": False, "ADDED": added, "GATED": gated}
                | {"M": block.rows, "COLUMNS": block.columns, "DEPTH": block.depth, "WIDE": False}
                | {"PRECISION": PRECISION},
                block.warps,
                block.stages - gated,
            )
            for block, depth, width, added, gated in (
                (fixed(4608, 2), 3584, 4608, False, False),
                (fixed(3584, 2), 18944, 3584, True, False),
                (fixed(18944, 2, gated=True), 3584, 18944, False, True),
                (fixed(32000, 2), 3584, 32000, False, False),
            )
        ),
        Variant("covey.gpu.kernels.norms", "gate", {"both": "*bf16", "out": "*bf16"}, {"SIZE": 18944, "S": 1024}),
    )  # fmt: skip
    assert all(each.widest_load >= 8 for each in made)
    assert all(each.widest_load == 16 for each in made[2:7])
    assert all(each.shared <= 227 << 9 for each in made[3:7]), "two programs do not fit a core"
    assert all("wgmma" in each.ptx for each in made[3:7])
