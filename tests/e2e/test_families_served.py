"""`make serve MODEL=` on families with vocabularies of their own: greedy text is that of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from covey.models.loading import quiet
from covey_client import Client
from tests.e2e.serving import served
from tests.e2e.test_own_model import PROMPT, tokenizer
from tests.models.tiny_models import build, generate

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SERVED = ("cohere2", "nemotron", "stablelm", "gemma", "olmo2", "glm4", "exaone4", "gpt2")
VOCABULARY = 397
PROFILE = """
models = ["target", "covey", "draft_ngram"]
[target]
dtype = "float32"
[speculation]
drafters = ["draft_ngram"]
"""


@pytest.mark.parametrize("family", SERVED)
def test_the_text_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    folder = build(tmp_path / family, family, vocab_size=VOCABULARY, eos_token_id=VOCABULARY - 1)
    with quiet():  # in shards, as large models come
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    own = tokenizer(VOCABULARY, "chat")
    own.save(str(folder / "tokenizer.json"))
    ids = np.asarray(own.encode(PROMPT).ids, np.int32)
    expected = generate(folder, ids, 24, torch.float32)
    with served(PROFILE, tmp_path, model=str(folder)) as server, Client(server.grpc_url) as client:
        for speculation in ("off", "fixed:4"):
            found = client.generate(PROMPT, max_tokens=24, speculation=speculation)
            assert (list(found.tokens), found.text) == (expected, own.decode(expected))
