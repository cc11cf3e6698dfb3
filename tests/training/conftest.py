"""A tokenizer of 384 tokens that is learned from the bundled prompts, a tiny target and a tiny drafter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from covey import prompts
from covey_training import architecture

TINY = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=["<|endoftext|>", "<|pad|>"], initial_alphabet=alphabet, show_progress=False
    )
    learned.train_from_iterator(prompts.load("chat"), trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    fast = PreTrainedTokenizerFast(tokenizer_object=learned, eos_token="<|endoftext|>", model_max_length=256)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return architecture.drafter(384, 0, num_hidden_layers=2, **TINY)


@pytest.fixture
def tiny_drafter() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return architecture.drafter(384, 0, num_hidden_layers=1, **TINY)
