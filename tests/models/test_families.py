"""Every family that is said to be exact writes what transformers' own loop writes; what differs from it is refused.

The table in docs/models.md says which: `python -m tests.models.test_families` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.contracts.errors import UnsupportedModel
from covey.models import refusals
from covey.models.model import PagedModel
from covey.models.native import architecture
from tests.models.tiny_models import FAMILIES, MORE, Reader, build, generate, prompts

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"
SLICE = {"granite", "cohere2", "nemotron", "gpt_oss"}  # of those that no other test runs
# Experts know no float64, and no shapes of theirs were found that make a row independent of others.
EXPERTS = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"}
# Model types whose greedy text is seen here to be that of transformers, and what is particular about them.
EXACT = {
    "llama": "also Llama 3's and other rotary scalings but dynamic",
    "mistral": "sliding window",
    "qwen2": "",
    "qwen3": "",
    "gemma": "",
    "gemma2": "sliding window, capped logits",
    "gemma3_text": "sliding window",
    "ministral3": "queries that grow with the position",
    "smollm3": "layers without rotary positions",
    "phi": "",
    "phi3": "long rotary factors: see below",
    "granite": "scaled logits, embeddings and residuals",
    "cohere": "scaled logits",
    "cohere2": "scaled logits, sliding window, layers without positions",
    "nemotron": "",
    "stablelm": "",
    "olmo": "",
    "olmo2": "",
    "olmo3": "sliding window",
    "starcoder2": "sliding window",
    "exaone4": "sliding window, layers without positions",
    "glm": "",
    "glm4": "",
    "ernie4_5": "",
    "seed_oss": "",
    "apertus": "",
    "arcee": "",
    "helium": "",
    "hunyuan_v1_dense": "",
    "persimmon": "",
    "gpt_neox": "",
    "gpt2": "learned positions",
    "gpt_bigcode": "learned positions, one key head",
    "opt": "learned positions",
    "mixtral": "experts (numerics `fast`)",
    "qwen2_moe": "experts (numerics `fast`)",
    "qwen3_moe": "experts (numerics `fast`)",
    "olmoe": "experts (numerics `fast`)",
    "granitemoe": "experts (numerics `fast`), scaled logits",
    "gpt_oss": "experts (numerics `fast`), attention sinks, sliding window",
}
NAMES = {"gemma3": "gemma3_text"}  # of model types, where they are not those of tiny_models


def table() -> str:
    """The families as docs/models.md shows them, those with the same remark in one row."""
    by_remark: dict[str, list[str]] = {}
    for family, remark in EXACT.items():
        by_remark.setdefault(remark, []).append(f"`{family}`")
    rows = [f"| {', '.join(families)} | {remark} |" for remark, families in by_remark.items()]
    return "\n".join(["| model types | |", "|---|---|", *rows, ""])


def test_the_docs_have_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


def test_what_is_said_to_be_exact_is_what_is_run() -> None:
    assert {NAMES.get(family, family) for family in FAMILIES | MORE} == set(EXACT)


@pytest.mark.parametrize(
    "family", [family if family in SLICE else pytest.param(family, marks=pytest.mark.slow) for family in MORE]
)
def test_its_greedy_text_is_that_of_generate(family: str, tmp_path: Path) -> None:
    dtype = torch.float32 if family in EXPERTS else torch.float64
    folder = build(tmp_path, family)
    rng = np.random.default_rng(1)
    rows = prompts(rng, 97, 3, 30, 17)
    expected = [generate(folder, row, 12, dtype) for row in rows]
    assert len({token for row in expected for token in row}) > 6, "the model should not repeat itself"
    model = PagedModel(
        folder, dtype=str(dtype)[6:], device="cpu", blocks=64, block_size=4, max_pass_tokens=64, numerics="fast"
    )
    assert Reader(model, rows, room=12).greedy(12, 7, rng) == expected


@pytest.mark.parametrize(
    "family",
    [
        family if family in SLICE else pytest.param(family, marks=pytest.mark.slow)
        for family in MORE
        if family not in EXPERTS
    ],
)
def test_no_row_depends_on_its_company(family: str, tmp_path: Path) -> None:
    model = PagedModel(
        build(tmp_path, family), dtype="float32", device="cpu", blocks=96, block_size=4, max_pass_tokens=64
    )
    assert model.numerics == "invariant"
    rows = prompts(np.random.default_rng(2), 97, 60, 33, 47)
    alone = [Reader(model, [row], seed).read([(0, 0, len(row))])[0] for seed, row in enumerate(rows)]
    beside = Reader(model, rows, 7)
    for start in range(0, 60, 20):
        steps = [(row, start, min(start + 20, len(text))) for row, text in enumerate(rows) if start < len(text)]
        for (row, begin, stop), logits in zip(steps, beside.read(steps)):
            assert torch.equal(logits, alone[row][begin:stop])


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


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(BEGIN)[0] + BEGIN + table() + END + text.partition(END)[2], encoding="utf-8")
