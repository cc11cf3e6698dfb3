"""`make serve MODEL=` on families with vocabularies of their own: greedy text is that of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from covey.contracts.profile import DEFAULT_PROFILE, find
from covey.models.loading import quiet
from covey.server import FREE_PORTS, Options, Server
from covey_client import Client
from tests.e2e.test_own_model import PROMPT, tokenizer
from tests.models.tiny_models import build, generate
from tests.server.test_adapters import adapter, beside
from tests.server.test_dequantised import fp8

pytestmark = pytest.mark.e2e

SERVED = ("cohere2", "nemotron", "stablelm", "gemma", "olmo2", "glm4", "exaone4", "gpt2", "falcon", "bloom", "mpt")
VOCABULARY = 397


@pytest.mark.slow
@pytest.mark.parametrize("family", SERVED)
def test_the_text_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    old = {"alibi": True} if family == "falcon" else {}
    folder = build(tmp_path / family, family, vocab_size=VOCABULARY, eos_token_id=VOCABULARY - 1, **old)
    with quiet():  # in shards, as large models come
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    own = tokenizer(VOCABULARY, "chat")
    own.save(str(folder / "tokenizer.json"))
    ids = np.asarray(own.encode(PROMPT).ids, np.int32)
    expected = generate(folder, ids, 24, torch.float32, "sdpa" if old else "eager")
    assert _served(tmp_path, Options(model=str(folder))) == [(expected, own.decode(expected))] * 2


def test_an_adapter_over_quantised_weights_is_merged_into_what_they_stand_for(tmp_path: Path) -> None:
    """Granite, whose logits are scaled, in FP8 and in two files."""
    sizes = {"vocab_size": VOCABULARY, "eos_token_id": VOCABULARY - 1}
    folder, plain = fp8(tmp_path / "fp8", 2, "granite", **sizes)
    own = tokenizer(VOCABULARY, "chat")
    own.save(str(folder / "tokenizer.json"))
    changed = "model.layers.0.self_attn.q_proj"
    lora = adapter(tmp_path / "lora", plain, [changed], base_model_name_or_path=str(folder))
    ids = np.asarray(own.encode(PROMPT).ids, np.int32)
    expected = beside(plain, lora, {changed: 2.0}, ids, 24)
    assert expected != generate(plain, ids, 24)
    options = Options(model=str(lora), dequantise=True, state=tmp_path / "state")
    assert _served(tmp_path, options) == [(expected, own.decode(expected))] * 2


def _served(tmp_path: Path, options: Options) -> list[tuple[list[int], str]]:
    """Tokens and text that the real server gives, without drafts and with them, in float32."""
    profile = tmp_path / "float32.toml"
    text = find(DEFAULT_PROFILE).read_text(encoding="utf-8")
    profile.write_text(text.replace("[target]", '[target]\ndtype = "float32"'), encoding="utf-8")
    _without_bundled_drafters(profile)
    chosen = replace(options, profile=str(profile), log_file=tmp_path / "tritonserver.log", **FREE_PORTS)
    with Server(chosen) as server, Client(server.grpc_url) as client:
        found = [client.generate(PROMPT, max_tokens=24, speculation=each) for each in ("off", "fixed:4")]
        server.kill()  # in order it takes long
    return [(list(one.tokens), one.text) for one in found]


def _without_bundled_drafters(profile: Path) -> None:
    text = profile.read_text(encoding="utf-8")
    for name in ("general", "code", "math", "translate", "chat", "summary"):
        text = text.replace(f'"draft_{name}", ', "").replace(f'"draft_{name}",', "")
    profile.write_text(text, encoding="utf-8")
