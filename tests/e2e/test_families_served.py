"""`make serve MODEL=` on families with vocabularies of their own: greedy text is that of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from covey.models.loading import quiet
from covey.profile import DEFAULT_PROFILE, find
from covey.server import FREE, Options, Server
from covey_client import Client
from tests.e2e.test_own_model import PROMPT, tokenizer
from tests.models.tiny_models import build, generate

pytestmark = pytest.mark.e2e

SERVED = ("granite", "cohere2", "nemotron", "stablelm", "gemma", "olmo2", "glm4", "exaone4", "gpt2", "opt")
SLICE = {"granite"}
VOCABULARY = 397


@pytest.mark.parametrize(
    "family", [family if family in SLICE else pytest.param(family, marks=pytest.mark.slow) for family in SERVED]
)
def test_the_text_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    folder = build(tmp_path / family, family, vocab_size=VOCABULARY, eos_token_id=VOCABULARY - 1)
    with quiet():  # in shards, as large models come
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    own = tokenizer(VOCABULARY, "chat")
    own.save(str(folder / "tokenizer.json"))
    profile = tmp_path / "float32.toml"
    text = find(DEFAULT_PROFILE).read_text(encoding="utf-8")
    profile.write_text(text.replace("[target]", '[target]\ndtype = "float32"'), encoding="utf-8")
    _without_bundled_drafters(profile)
    ports = {"http_port": FREE, "grpc_port": FREE, "metrics_port": FREE}
    log = tmp_path / "tritonserver.log"
    options = Options(model=str(folder), profile=str(profile), log_file=log, **ports)
    with Server(options) as server, Client(server.grpc_url) as client:
        found = [client.generate(PROMPT, max_tokens=24, speculation=each) for each in ("off", "fixed:4")]
    ids = np.asarray(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT).ids, np.int32)
    expected = generate(folder, ids, 24, torch.float32)
    assert [list(one.tokens) for one in found] == [expected, expected]
    assert found[0].text == own.decode(expected)


def _without_bundled_drafters(profile: Path) -> None:
    text = profile.read_text(encoding="utf-8")
    for name in ("general", "code", "math", "translate", "chat", "summary"):
        text = text.replace(f'"draft_{name}", ', "").replace(f'"draft_{name}",', "")
    profile.write_text(text, encoding="utf-8")
