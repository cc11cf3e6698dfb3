"""Every family that is said to be exact writes what transformers' own loop writes; the others are refused by name.

The table in docs/models.md says which: `python -m tests.models.test_families` writes it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DiffLlamaConfig

from covey.contracts.errors import UnsupportedModel
from covey.models import refusals
from covey.models.loading import quiet
from covey.models.model import PagedModel
from covey.models.modules import Modules
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
    """The families as docs/models.md shows them."""
    lines = ["| model type | |", "|---|---|"]
    lines += [f"| `{family}` | {remark} |" for family, remark in EXACT.items()]
    features: dict[str, list[str]] = {}
    for family, feature in refusals.families():
        features.setdefault(feature, []).append(f"`{family}`")
    lines += ["", "| refused | for |", "|---|---|"]
    lines += [f"| {', '.join(families)} | {feature} |" for feature, families in features.items()]
    return "\n".join([*lines, ""])


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
    ("family", "changes"),
    [("qwen2_moe", {"max_window_layers": 3}), ("smollm3", {"layer_types": ["sliding_attention"] * 3})],
)
def test_a_window_that_only_the_mask_has_is_kept_beyond_what_is_tried_at_load(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Their attention is not told of it; and 48 tokens, which are tried, are within it."""
    uses = {"use_sliding_window": family == "qwen2_moe", "sliding_window": 60}
    folder = build(tmp_path, family, **uses, **changes)
    (row,) = prompts(np.random.default_rng(3), 97, 90)
    with quiet(), torch.inference_mode():
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        own = module(torch.from_numpy(row)[None].long()).logits[0]
    model = PagedModel(folder, dtype="float32", device="cpu", blocks=32, block_size=4, numerics="fast")
    reader = Reader(model, [row])
    found = torch.cat([reader.read([(0, start, start + 45)])[0] for start in (0, 45)])
    assert torch.allclose(found, own, rtol=0, atol=1e-3)


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


@pytest.mark.parametrize(("family", "feature"), list(refusals.families()))
def test_refused_families_are_named_by_their_feature(family: str, feature: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        refusals.by_config(tmp_path, {"model_type": family}.get)
    assert str(caught.value).startswith(f"{tmp_path}: {feature} is not supported: ")
    assert "\n" not in str(caught.value)


def test_attention_twice_in_a_layer_is_seen_whatever_the_family_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second result would be read in place of the first's keys by every later pass, though not by the first."""
    monkeypatch.setattr(refusals, "by_config", lambda *_: None)
    config = DiffLlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    with pytest.raises(UnsupportedModel, match="computed twice in a layer"):
        PagedModel(Modules.of(module, "in memory"), dtype="float32", device="cpu", blocks=16, numerics="fast")


def test_the_launcher_knows_transformers_language_models() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert refusals.language_models() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.slow
def test_what_a_family_s_defaults_rule_out_is_known_by_its_name(tmp_path: Path) -> None:
    """The launcher reads config.json as it is written, without the defaults that its family adds."""
    unknown = {}
    for family in sorted(refusals.language_models() - set(EXACT)):
        if family in CONFIG_MAPPING:
            try:
                with quiet():
                    config = CONFIG_MAPPING[family]()
                refusals.by_config(tmp_path, lambda key, config=config: getattr(config, key, None))
            except Exception as error:  # a configuration of parts says in its own way that it is none
                with contextlib.suppress(UnsupportedModel):
                    refusals.by_config(tmp_path, {"model_type": family}.get)
                    unknown[family] = str(error)
    assert not set(unknown) - {"gemma4_assistant"}


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(BEGIN)[0] + BEGIN + table() + END + text.partition(END)[2], encoding="utf-8")
