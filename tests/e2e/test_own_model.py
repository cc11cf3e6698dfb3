"""`make serve MODEL=folder` with a model that nobody here made: its tokenizer, its text, and what drafts for it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from covey import prompts
from covey.contracts.profile import DEFAULT_PROFILE, find
from covey.launcher import FREE_PORTS, Options, Server, StartError, preflight
from covey.launcher.progress import ready_message
from covey.models.loading import quiet
from covey.supervision import processes
from covey_client import Client, InvalidRequest, status
from covey_client.cli import main
from covey_client.reports import Reports
from tests.bundled import MODELS, NEURAL
from tests.e2e.serving import generate as answer_of
from tests.e2e.serving import post
from tests.fronts import fronting
from tests.models.tiny_models import build, generate
from tests.waiting import until

SIZE = 400  # outputs of the model
MARK = "<FILL_ME>"  # a token of the tokenizer that the model lacks
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
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
    tokenizer(min(size, SIZE), "chat").save(str(folder / "tokenizer.json"))
    return folder


def options(folder: Path, **changes: object) -> Options:
    return dataclasses.replace(
        Options(**FREE_PORTS, model=str(folder)),
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = model(tmp_path_factory.mktemp("a model") / "mine", SIZE)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    tokenizer.add_special_tokens([MARK])
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text("{}")
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


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
def test_what_needs_no_vocabulary_drafts_and_changes_nothing(running: Server) -> None:
    settings = {"max_tokens": 40, "min_tokens": 40, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}
    with Client(running.grpc_url) as client:
        plain = [client.generate(PROMPT, seed=seed, speculation="off", **settings).tokens for seed in (1, 2)]
        assert plain[0] != plain[1]
        for drafter in LOOKUPS:
            for seed, tokens in zip((1, 2), plain):
                found = client.generate(PROMPT, seed=seed, speculation="fixed:3", drafter=drafter, **settings)
                assert found.tokens == tokens
                assert found.usage.draft_tokens


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
    refused = answer_of(running, "covey", text_input="a", max_tokens=3, drafter=NEURAL[0])["error"]
    assert f"got '{NEURAL[0]}', allowed: '', 'draft_ngram', 'draft_suffix'" in refused


def first_token(client: Client) -> float:
    began = time.monotonic()
    stream = client.stream("one two three", max_tokens=24, min_tokens=24)
    next(stream)
    seconds = time.monotonic() - began
    assert sum(len(chunk.tokens) for chunk in stream) > 0
    return seconds


@pytest.mark.e2e
def test_a_token_that_the_model_lacks_is_refused_at_every_door_beside_a_steady_client(running: Server) -> None:
    with fronting(running) as front, Client(running.grpc_url) as client, Client(front.grpc_url) as ours:
        text, ids = f"{MARK} hi", [5, SIZE]
        v1, triton = f"{front.http_url}/v1", f"{running.http_url}/v2/models"
        doors: list[tuple[str, dict[str, object]]] = [
            (f"{v1}/completions", {"prompt": text}),
            (f"{v1}/completions", {"prompt": ids, "stream": True}),
            (f"{v1}/chat/completions", {"messages": [{"role": "user", "content": text}]}),
            (f"{front.http_url}/v2/models/covey/generate", {"text_input": text}),
            *((f"{triton}/{name}/generate", {"text_input": text}) for name in ("covey", "covey_unary", "ensemble")),
            (f"{triton}/covey/generate_stream", {"text_input": text, "stream": True}),
            (f"{triton}/covey/generate", {"input_ids": ids}),
            (f"{triton}/covey/generate", {"text_input": "hi", "bad_words": [MARK]}),
        ]
        before = processes.named(running.pid)["target"]
        for _ in range(3):
            first_token(client)
        alone = statistics.median(first_token(client) for _ in range(9))
        stopped, beside = threading.Event(), list[float]()

        def steady() -> None:
            with Client(running.grpc_url) as other:
                while not stopped.is_set():
                    beside.append(first_token(other))

        thread = threading.Thread(target=steady)
        thread.start()
        try:
            refused = f"got {SIZE}, allowed: token ids from 0 to {SIZE - 1}: the model lacks this one, '{MARK}'"
            for url, body in doors:
                status_of_it, said = post(url, body)
                assert refused in said
                assert status_of_it in (200, 400), "it is the request's fault; Triton's streams have it behind a 200"
            with pytest.raises(InvalidRequest, match=f"text_input: got {SIZE}"):
                ours.generate(text)
            with pytest.raises(InvalidRequest, match="grammar_lark: got"):
                client.generate("hi", grammar_lark=f"start: {MARK}")
            # What the model has is served, such a tokenizer or not.
            assert ours.generate("hi", max_tokens=4, stop_words=[MARK], grammar_regex="[a-z]+").tokens
        finally:
            stopped.set()
            thread.join(60)
        assert processes.named(running.pid)["target"] == before
        assert statistics.median(beside) <= 4 * alone


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
