"""The shape of a distilled drafter, how to write folders atomically, and how to read the bundled models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

DRAFTERS = ("draft_general", "draft_code")


def drafter(vocabulary: int, end_of_text: int, **changes: int) -> LlamaForCausalLM:
    """Return a drafter of one layer: a step costs little more than the embedding. `changes` override its sizes for
    tests."""
    shape = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 1,
             "num_attention_heads": 6, "num_key_value_heads": 3}  # fmt: skip
    config = LlamaConfig(
        vocab_size=vocabulary,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=None,
        attn_implementation="sdpa",
        **{**shape, **changes},
    )
    return LlamaForCausalLM(config)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to. Its files move to `folder` once all are complete, so a reader sees no half file."""
    staging = folder.parent / f".{folder.name}.partial"
    staging.mkdir(parents=True, exist_ok=True)
    yield staging
    folder.mkdir(exist_ok=True)
    for path in staging.iterdir():
        path.chmod(0o644)  # safetensors lets only the owner read, and a server may run as another user
        path.replace(folder / path.name)
    staging.rmdir()


def load_model(repository: Path, name: str) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(repository / name / "1", dtype=torch.float32)
    return model
