"""Every family that is said to be exact writes what transformers' own loop writes; what differs from it is refused.

The table in docs/models.md says which.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.contracts.errors import UnsupportedModel
from covey.models import refusals
from covey.models.model import PagedModel
from covey.models.native import architecture
from tests.models.tiny_models import EXPERTS, FAMILIES, MORE, Reader, build, generate, prompts

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"
SLICE = {*FAMILIES, "granite", "cohere2", "nemotron", "gpt_oss"}  # what `make test` runs
NAMES = {"gemma3": "gemma3_text"}  # of model types, where they are not those of tiny_models


def test_the_docs_name_the_families_that_are_run() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()))
    assert sorted(named) == sorted(NAMES.get(family, family) for family in FAMILIES | MORE)


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=() if each in SLICE else pytest.mark.slow) for each in (*FAMILIES, *MORE)],
)
def test_its_greedy_text_is_that_of_generate(family: str, tmp_path: Path) -> None:
    """Whatever the paging, chunks and batches."""
    dtype = torch.float32 if family in EXPERTS else torch.float64
    folder = build(tmp_path, family)
    rng = np.random.default_rng(1)
    # Queries of this family grow beyond 64 positions, which the trial at loading does not reach.
    rows = prompts(rng, 97, 3, 130 if family == "ministral3" else 30, 17)
    expected = [generate(folder, row, 12, dtype) for row in rows]
    assert len({token for row in expected for token in row}) > 6, "the model should not repeat itself"
    numerics = "fast" if family in EXPERTS else "auto"
    model = PagedModel(
        folder, dtype=str(dtype)[6:], device="cpu", blocks=64, block_size=4, max_pass_tokens=64, numerics=numerics
    )
    assert Reader(model, rows, room=12).greedy(12, 7, rng) == expected


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attn_logit_softcapping": 2.0, "residual_multiplier": 0.5, "attention_sinks": True}),
        ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0}),
    ],
)
def test_keys_that_change_the_computation_give_transformers_text(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = build(tmp_path, family, **changes)
    with pytest.raises(UnsupportedModel):
        architecture.read(folder)
    (row,) = prompts(np.random.default_rng(3), 97, 30)
    model = PagedModel(folder, dtype="float64", device="cpu", blocks=16, block_size=4, numerics="fast")
    assert Reader(model, [row], room=12).greedy(12, 7, np.random.default_rng(1)) == [generate(folder, row, 12)]


def test_the_launcher_knows_transformers_language_models() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert refusals.language_models() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
