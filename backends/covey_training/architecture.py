"""The shapes of the models in the box, and how their version folders are written and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from covey.prompts import DOMAINS
from covey_training import tokenizer

POSITIONS = 2048
GENERAL = "draft_general"
SPECIALISTS: Mapping[str, str] = {
    "code": "draft_code",
    "math": "draft_math",
    "translation": "draft_translate",
    "summarisation": "draft_summary",
    "chat": "draft_chat",
    "edits": "draft_suffix",  # copies, and learns nothing
}
DRAFTERS: tuple[str, ...] = (GENERAL, *(SPECIALISTS[domain] for domain in DOMAINS if domain != "edits"))


def target(vocabulary: int, end_of_text: int, **changes: int) -> LlamaForCausalLM:
    """Return a target that is deep rather than wide; `changes` make a smaller one for tests."""
    shape = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 16,
             "num_attention_heads": 8, "num_key_value_heads": 4}  # fmt: skip
    return LlamaForCausalLM(configure(vocabulary, end_of_text, {**shape, **changes}))


def drafter(vocabulary: int, end_of_text: int, **changes: int) -> LlamaForCausalLM:
    """Return a drafter of one layer: a step costs little more than the embedding."""
    shape = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 1,
             "num_attention_heads": 6, "num_key_value_heads": 3}  # fmt: skip
    return LlamaForCausalLM(configure(vocabulary, end_of_text, {**shape, **changes}))


def configure(vocabulary: int, end_of_text: int, shape: Mapping[str, int]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        head_dim=32,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=None,
        attn_implementation="sdpa",
        **shape,
    )


def save_model(model: LlamaForCausalLM, repository: Path, name: str, tokenizer_folder: Path) -> None:
    """Write `repository/name/1`, the weights as bf16."""
    copy = LlamaForCausalLM(model.config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    end_of_text = model.config.eos_token_id
    copy.generation_config = GenerationConfig(bos_token_id=end_of_text, eos_token_id=end_of_text)
    with staged(repository / name / "1") as staging:
        copy.save_pretrained(staging)
        vocabulary = tokenizer.load(tokenizer_folder)
        vocabulary.save_pretrained(staging, save_jinja_files=False)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, whose files are `folder`'s once all are whole: a reader never sees half a file."""
    staging = folder.parent / f".{folder.name}.partial"
    staging.mkdir(parents=True, exist_ok=True)
    yield staging
    folder.mkdir(exist_ok=True)
    for path in staging.iterdir():
        path.chmod(0o644)  # safetensors writes for its owner alone, and a server may run as someone else
        path.replace(folder / path.name)
    staging.rmdir()


def load_model(repository: Path, name: str) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(repository / name / "1", dtype=torch.float32)
    return model
