"""`python -m covey.models.native.compiler VARIANT`: compile one variant of the passes for the CPU, and run nothing.

Numba's types of a pass depend only on the variant, so a model of one layer of zeros stands for all. Because nothing is
run, this machine can also compile for a newer CPU than its own, which shows whether the code would lack symbols there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.typing.typeof import Purpose, typeof

from covey.models.heads import Taps
from covey.models.native import SMALL, matmul, tiles
from covey.models.native.architecture import Architecture
from covey.models.native.chains import chain
from covey.models.native.compiled import BFLOAT16, FLOAT32
from covey.models.native.contenders import search
from covey.models.native.passes import Passes, kinds, tiles_of
from covey.models.native.stages import run
from covey.models.native.states import make
from covey.models.native.tiles import FLOATS
from covey.models.stepper import Race
from covey.models.stored import Stored

SIZE = 64  # each dimension of the model


def _compile(function: Any, given: tuple[Any, ...]) -> None:
    function.compile(tuple(typeof(each, Purpose.argument) for each in given))


def _model(file: Path, dtype: str) -> Architecture:
    """Return a model of one layer; all its tensors are the zeros at the beginning of the file."""
    file.write_bytes(bytes(4 * SIZE * SIZE))

    def tensor(*shape: int) -> Stored:
        return Stored("zeros", file, dtype, shape, int(np.prod(shape)) * (2 if dtype == "BF16" else 4), 0)

    layer = [*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))]
    weights = {f"model.layers.0.{name}.weight": tensor(SIZE, SIZE) for name in layer}
    weights["model.embed_tokens.weight"] = tensor(SIZE, SIZE)
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    weights |= {f"model.{name}.weight": tensor(SIZE) for name in norms}
    return Architecture(
        vocab_size=SIZE,
        width=SIZE,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=SIZE,
        eps=1e-5,
        max_positions=SIZE,
        end_ids=(),
        tied=True,
        frequencies=(1.0,) * (SIZE // 2),
        factor=1.0,
        inner=SIZE,
        weights=weights,
    )


def main(variant: str) -> None:
    dtype = BFLOAT16 if variant == BFLOAT16 else "float32"
    with tempfile.TemporaryDirectory() as folder:
        of = _model(Path(folder) / "zeros", "F32" if variant == FLOAT32 else "BF16")
        taps = Taps((0,), np.zeros((SIZE, SIZE), np.float32), (), 0.0)
        passes = Passes(of, dtype, blocks=1, threads=1, most_tokens=1, taps=taps)
        unread, slot = passes.unread(), np.array([[passes.pool.padding_slot]], np.int32)
        _compile(run, passes.of_pass(unread))
        _compile(chain, passes.of_chain(unread, slot, slot, Race(np.zeros(1), np.ones((2, 3, 1), np.int32))))
        _compile(make, passes.of_states(slot[0]))
        words, places = np.ones((3, 1, 1), np.int32), np.zeros(1, np.int64)
        found = np.zeros((1, 1), np.float32), np.zeros(1, np.int32), words, words.astype(np.float32)
        _compile(search, (*found, places, places.astype(np.int32)))
    if variant == BFLOAT16:
        kind, seen = kinds(of, SMALL)
        tiles.addresses(tiles_of(kind, seen))
        tiles.addresses(matmul.tiles_of(seen))
    else:
        tiles.addresses(tiles_of(FLOATS, FLOATS))


if __name__ == "__main__":
    main(sys.argv[1])
