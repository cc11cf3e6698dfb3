"""`make serve MODEL=folder` with a model that nobody here made: its tokenizer, its text, and what drafts for it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from covey import prompts
from covey.contracts.errors import SettingError
from covey.contracts.profile import DEFAULT_PROFILE, find
from covey.launcher import FREE_PORTS, Options, Server, StartError, preflight
from covey.launcher.progress import ready_message
from covey.models.loading import quiet
from covey_client import Client, status
from covey_client.cli import main
from covey_client.reports import Reports
from tests.bundled import MODELS, NEURAL
from tests.models.tiny_models import build, generate
from tests.waiting import until

BUNDLED = 4096  # tokens in the vocabulary of the bundled models
LOOKUPS = ("draft_ngram", "draft_suffix")
PROMPT = "one two three one two three one two three one two"
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}  # of a logit; they spread by 1.5


def tokenizer(size: int, domain: str) -> Tokenizer:
    """A fresh one, of bytes and what is frequent in a domain's prompts; what is missing to `size` is never said."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(prompts.load(domain), trainer)
    return made


def model(folder: Path, size: int, family: str = "qwen2") -> Path:
    build(folder, family, vocab_size=size, bos_token_id=0, eos_token_id=0)
    tokenizer(min(size, 400), "chat").save(str(folder / "tokenizer.json"))
    return folder


def options(folder: Path, **changes: object) -> Options:
    return dataclasses.replace(
        Options(**FREE_PORTS, model=str(folder)),
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("a model") / "mine", 400)


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    with Server(options(folder, log_file=folder.parent / "tritonserver.log")) as server:
        yield server
        server.kill()  # in order it takes long; that is for `test_drain` to see


@pytest.mark.e2e
def test_the_text_is_the_model_s_own(running: Server, folder: Path) -> None:
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.asarray(own.encode(PROMPT).ids, np.int32)
    dtype = Reports(running.http_url).facts().dtype
    with quiet(), torch.inference_mode():
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        with Client(running.grpc_url) as client:
            for speculation in ("off", "fixed:4"):
                found = client.generate(PROMPT, max_tokens=24, end_id=399, speculation=speculation)
                tokens = list(found.tokens)
                assert found.text == own.decode(tokens)
                said = torch.from_numpy(np.concatenate((ids, tokens)).astype(np.int64))
                logits = reference(said[None]).logits[0, len(ids) - 1 : -1]
                short = logits.amax(-1) - logits[torch.arange(24), said[len(ids) :]]
                assert short.max() < TOLERANCE[dtype]
                if dtype == "float32":
                    assert tokens == generate(folder, ids, 24)


@pytest.mark.e2e
@pytest.mark.parametrize("drafter", LOOKUPS)
def test_what_needs_no_vocabulary_drafts_and_changes_nothing(running: Server, drafter: str) -> None:
    settings = {"max_tokens": 40, "min_tokens": 40, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}
    with Client(running.grpc_url) as client:
        plain = [client.generate(PROMPT, seed=seed, speculation="off", **settings) for seed in (1, 2)]
        drafted = [
            client.generate(PROMPT, seed=seed, speculation="fixed:3", drafter=drafter, **settings) for seed in (1, 2)
        ]
    assert [found.tokens for found in drafted] == [found.tokens for found in plain]
    assert plain[0].tokens != plain[1].tokens
    assert all(found.usage.draft_tokens for found in drafted)


@pytest.mark.e2e
def test_what_is_left_out_is_said_wherever_one_looks(
    running: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ready_message(running.options, "log", running.left_out)
    assert f"Left out: {', '.join(NEURAL)} (another tokenizer than {folder})." in said
    assert f"Drafting: {', '.join(LOOKUPS)}, " in said
    assert tuple(Reports(running.http_url).facts().drafters) == LOOKUPS, "the first serves who names none"
    metrics = running.metrics_url.removesuffix("/metrics")
    served = until(lambda: status.read(running.http_url, metrics).served)  # metrics come up a while after the models
    assert served["left_out"] == ", ".join(NEURAL)
    assert main(["status", "--url", running.http_url, "--metrics-url", metrics]) == 0
    assert f"left out, because their tokenizer is not the target's: {NEURAL[0]}," in capsys.readouterr().out
    body = json.dumps({"text_input": "a", "max_tokens": 3, "drafter": NEURAL[0]}).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{running.http_url}/v2/models/covey/generate", body, timeout=30)
    with caught.value as response:
        assert f"got '{NEURAL[0]}', allowed: '', 'draft_ngram', 'draft_suffix'" in response.read().decode()


def left_out(chosen: Options) -> dict[str, str]:
    """Decided without a server: before anything is loaded."""
    return preflight.left_out(chosen, preflight.models(chosen))


def test_a_vocabulary_of_the_same_size_is_another_all_the_same(tmp_path: Path) -> None:
    mine = model(tmp_path / "mine", BUNDLED)
    assert left_out(options(mine)) == dict.fromkeys(NEURAL, f"another tokenizer than {mine}")
    (mine / "tokenizer.json").unlink()
    assert left_out(options(mine)) == {}, "ids alone: only the size can be compared"


def test_the_bundled_vocabulary_keeps_all_drafters(tmp_path: Path) -> None:
    assert left_out(Options()) == {}
    mine = model(tmp_path / "mine", BUNDLED)
    shutil.copy(MODELS / "target" / "1" / "tokenizer.json", mine)
    assert left_out(options(mine)) == {}
    own = json.loads((mine / "tokenizer.json").read_text(encoding="utf-8"))
    own["added_tokens"].append(own["added_tokens"][0] | {"id": BUNDLED, "content": "<|tool|>"})
    (mine / "tokenizer.json").write_text(json.dumps(own), encoding="utf-8")
    assert left_out(options(mine)) == {}, "a chat model's added tokens are no other vocabulary"


def test_drafters_that_somebody_named_must_fit(folder: Path, tmp_path: Path) -> None:
    named = tmp_path / "mine.toml"
    text = find(DEFAULT_PROFILE).read_text(encoding="utf-8")
    named.write_text(text, encoding="utf-8")
    with pytest.raises(StartError) as caught:
        Server(options(folder, profile=str(named))).start()
    assert str(caught.value).startswith(f"{', '.join(NEURAL)} cannot draft for this target (draft_general has ")
    assert str(caught.value).endswith(f"out of models and speculation.drafters of profile {named}")
    assert "\n" not in str(caught.value)
    for name in NEURAL:
        text = text.replace(f'"{name}",', "")
    named.write_text(text, encoding="utf-8")
    assert left_out(options(folder, profile=str(named))) == {}
    apart = (
        text.replace('"draft_ngram"', '"draft_code", "draft_ngram"') + f'[drafter]\nfolders = ["draft_code:{folder}"]\n'
    )
    named.write_text(apart, encoding="utf-8")
    assert left_out(options(folder, profile=str(named))) == {}, "the folder counts, not the model's name"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    mine = model(tmp_path / "mine", BUNDLED)
    (mine / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingError, match=r"tokenizer\.json: not a tokenizer: "):
        left_out(options(mine))
    (mine / "config.json").write_text("[]")
    with pytest.raises(SettingError, match=r"config\.json: not a JSON object: list; copy it again"):
        left_out(options(mine))
