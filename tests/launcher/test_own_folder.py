"""What cannot be served is refused by the launcher, by files' names and configuration, in one line and at once."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from covey.contracts.errors import SettingError
from covey.contracts.profile import GENERAL, HEAD
from covey.launcher import Options, Server, hub, preflight
from covey.launcher.progress import ready_message
from covey.text import vocabulary
from tests.bundled import MODELS

SECONDS = 5.0  # of the processor
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TENSORS = ("model.layers.0.w", "model.layers.1.w")
BUNDLED = MODELS / "target" / "1"
VOCABULARY = vocabulary.size(BUNDLED)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
Build = Callable[[Path], Path]


def written(folder: Path, **config: Any) -> Path:
    """A folder that could be served but for what `config` says: a tensor in each of two layers, and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(settings | config))
    hold(folder, {name: ("F32", [1], 4 * layer, 4 * layer + 4) for layer, name in enumerate(TENSORS)})
    shutil.copy(BUNDLED / "tokenizer.json", folder)
    return folder


def hold(folder: Path, tensors: dict[str, tuple[str, list[int], int, int]]) -> None:
    """Write weights: of each tensor its type, its shape, and the bytes where it begins and ends."""
    places = {name: {"dtype": d, "shape": s, "data_offsets": [b, e]} for name, (d, s, b, e) in tensors.items()}
    header = json.dumps(places).encode()
    size = max(end for *_, end in tensors.values())
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


def renamed(name: str, other: str) -> Build:
    """A folder of which one file has another name."""

    def build(at: Path) -> Path:
        (written(at) / name).rename(at / other)
        return at

    return build


def without(name: str) -> Build:
    def build(at: Path) -> Path:
        (written(at) / name).unlink()
        return at

    return build


def with_text(name: str, text: str | bytes, base: Build | None = None) -> Build:
    """A folder with this file in it, or another one in place of the one that it has."""

    def build(at: Path) -> Path:
        place = base(at) if base else written(at)
        (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return place

    return build


def with_pipe(name: str, base: Build | None = None) -> Build:
    def build(at: Path) -> Path:
        place = base(at) if base else written(at)
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)
        return place

    return build


def indexed(*files: Any) -> Build:
    """Weights in one file of two, and an index that says that they are in these files."""

    def build(at: Path) -> Path:
        renamed(WEIGHTS, ONE)(at)
        (at / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(zip("wv", files))}))
        (at.parent / "out").write_text("who must not be read")
        (at.parent / "out.safetensors").write_text("nor who")
        return at

    return build


def shards_without_a_tensor(at: Path) -> Path:
    shutil.copy(indexed(ONE, TWO)(at) / ONE, at / TWO)
    return at


def cut_short(at: Path) -> Path:
    weights = written(at) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    return at


def gguf(at: Path) -> Path:
    (at / "model-q4.gguf").write_bytes(b"GGUF")
    return at / "model-q4.gguf"


def adapter(at: Path) -> Path:
    (at / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "somebody/base"}))
    (at / "adapter_model.safetensors").write_bytes(b"")
    return at


def holding(name: str, dtype: str, *shape: int, **config: Any) -> Build:
    """The same folder with one tensor more, of two bytes a number."""

    def build(at: Path) -> Path:
        places = {each: ("BF16", [1], 2 * layer, 2 * layer + 2) for layer, each in enumerate(TENSORS)}
        hold(written(at, **config), places | {name: (dtype, [*shape], 4, 4 + 2 * math.prod(shape))})
        return at

    return build


def placed(*places: tuple[int, int]) -> Build:
    """The same folder with tensors of two numbers in these places."""

    def build(at: Path) -> Path:
        hold(written(at), {name: ("F32", [2], *place) for name, place in zip(TENSORS, places)})
        return at

    return build


def headed(header: bytes) -> Build:
    return with_text(WEIGHTS, len(header).to_bytes(8, "little") + header)


def index(text: str | bytes) -> Build:
    return with_text(INDEX, text, indexed(ONE))


def saying(**config: Any) -> Build:
    return lambda at: written(at, **config)


DEEP, LONG = "[" * 200_000, "n" * 100_000
SAME = "safetensors files of the same folder"
REFUSED: dict[str, tuple[Build, tuple[str, ...]]] = {
    "an index of another folder": (
        indexed(ONE, "../out.safetensors"),
        (f"{INDEX}: names '../out.safetensors' as", SAME),
    ),
    "an index of a name too long": (indexed(ONE, LONG + ".safetensors"), (f"{INDEX}: names 'nnn", SAME)),
    "an index with a deep map": (
        index('{"metadata": {}, "weight_map": ' + "[" * 500 + "]" * 500 + "}"),
        (f"{INDEX}: not a JSON object: nested deeper than", "copy it again"),
    ),
    "an index without a map": (index('{"metadata": {}, "weight_map": [1]}'), ("no weight_map",)),
    "an index of bytes": (index(b"\xff\xfe{}"), (f"{INDEX}: not a JSON object", "copy it again")),
    "a deep configuration": (with_text("config.json", DEEP), ("config.json: not a JSON object: nested", "copy it")),
    "a configuration of a list": (with_text("config.json", "[]"), ("config.json: not a JSON object: list; copy it",)),
    "a configuration of one long number": (
        with_text("config.json", '{"vocab_size": ' + "9" * 100_000 + "}"),
        ("config.json: ",),
    ),
    "a configuration of another's weights": (
        saying(transformers_weights="../out.safetensors"),
        ("transformers_weights of config.json is '../out.safetensors'", "a file of the same folder"),
    ),
    "a model type too long": (saying(model_type=LONG), ("model type 'nnn", "serve a family of docs/models.md")),
    "layers without end": (saying(num_hidden_layers=10**9), ("num_hidden_layers of config.json is 1000000000",)),
    "an endless vocabulary": (saying(vocab_size=math.inf), ("vocab_size of config.json is inf",)),
    "a deep tokenizer": (with_text("tokenizer.json", DEEP), ("tokenizer.json: not a tokenizer", "copy it again")),
    "a tokenizer of one long name": (
        with_text("tokenizer.json", json.dumps({"version": LONG})),
        ("tokenizer.json: not a tokenizer", "copy it again"),
    ),
    "a deep header": (headed(DEEP.encode()), ("model.safetensors cannot be read as safetensors: copy it again",)),
    "a header of bad shapes": (
        headed(b'{"model.embed_tokens.weight": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}}'),
        ("model.safetensors cannot be read as safetensors: copy it again",),
    ),
    "a header of bytes before the file": (
        headed(b'{"a.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, -4]}}'),
        ("model.safetensors cannot be read as safetensors: copy it again",),
    ),
    "embeddings without a shape": (
        holding("embed_tokens.weight", "BF16"),
        ("embed_tokens.weight of model.safetensors is [], allowed by config.json (vocab_size 4096, hidden_size 32)",),
    ),
    "more layers than the weights": (
        saying(num_hidden_layers=10_000_000),
        ("num_hidden_layers of config.json is 10000000, allowed: at most 2",),
    ),
    "more layers by GPT-2's word": (saying(n_layer=10_000_000), ("n_layer of config.json is 10000000",)),
    "another width": (
        holding("model.embed_tokens.weight", "BF16", 4096, 16),
        ("model.embed_tokens.weight of model.safetensors is [4096, 16]", "hidden_size 32): [4096, 32]; copy both"),
    ),
    "a layer of another shape": (
        holding("model.layers.1.mlp.up_proj.weight", "BF16", 24, 64, model_type="gemma", intermediate_size=48),
        ("model.layers.1.mlp.up_proj.weight of model.safetensors is [24, 64], ", "intermediate_size 48", "[48, 32]"),
    ),
    "norms of no number": (
        saying(rms_norm_eps=math.nan),
        ("rms_norm_eps of config.json is nan, allowed: a finite number",),
    ),
    "norms of no number in transformers' form": (
        saying(rms_norm_eps={"__float__": "NaN"}),
        ("rms_norm_eps of config.json is nan, allowed: a finite number",),
    ),
    "norms in words": (saying(rms_norm_eps="small"), ("rms_norm_eps of config.json is 'small', allowed: a number",)),
    "endless rotations": (
        saying(rope_parameters={"rope_theta": math.inf}),
        ("rope_parameters.rope_theta of config.json is inf",),
    ),
    "tensors that overlap": (
        placed((0, 8), (4, 12)),
        ("model.safetensors: model.layers.1.w begins at byte ", "where the one before"),
    ),
    "tensors with a gap": (placed((0, 8), (12, 20)), ("model.safetensors: model.layers.1.w begins at byte ",)),
    "a tensor of too few bytes": (
        placed((0, 4), (4, 12)),
        ("model.safetensors: model.layers.0.w has 4 bytes, allowed: 8 for F32 [2]",),
    ),
    **{
        f"a pipe as {name}": (with_pipe(name), (f"{name}: cannot be read: it is no regular file",))
        for name in ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json")
    },
    "a pipe as an index": (with_pipe(INDEX, indexed()), (f"{INDEX}: cannot be read: it is no regular file",)),
    "a tensor's name too long": (holding(LONG + ".weight", "I8", 2), ("weights of type I8", "that it was made from")),
    "nowhere": (lambda at: at / "nowhere", ("no such folder",)),
    "empty": (lambda at: at, ("no config.json",)),
    "gguf file": (gguf, ("model-q4.gguf: it is cut short",)),
    "gguf and a configuration": (
        with_text("model-q4.gguf", "GGUF", without(WEIGHTS)),
        ("no safetensors weights; give MODEL=", "itself"),
    ),
    "pytorch_model.bin": (renamed(WEIGHTS, "pytorch_model.bin"), ("pytorch_model.bin is not read", "save_pretrained(")),
    "another library's": (
        renamed(WEIGHTS, "consolidated.00.pth"),
        ("consolidated.00.pth is not read: fetch the model's safetensors",),
    ),
    "a shard is missing": (indexed(ONE, TWO), (f"{TWO} is not there", "1 of 2")),
    "a shard lacks a tensor": (shards_without_a_tensor, ("the weights lack v", "copy them whole")),
    "shards without an index": (renamed(WEIGHTS, ONE), (f"neither {WEIGHTS} nor {INDEX}",)),
    "cut short": (cut_short, ("copy it again",)),
    "weights in Git LFS": (with_text(WEIGHTS, LFS), ("run git lfs pull",)),
    "tokenizer in Git LFS": (with_text("tokenizer.json", LFS), ("not a tokenizer", "copy it again")),
    "bare integers": (holding("layers.0.mlp.weight", "I8", 2), ("weights of type I8", "that it was made from")),
    "other tokenizer": (
        saying(vocab_size=97),
        ("its tokenizer has 4096 tokens, its model 97",),
    ),
    "adapter": (adapter, ("merge it into somebody/base by peft's merge_and_unload",)),
    "tokenizer of SentencePiece": (
        renamed("tokenizer.json", "tokenizer.model"),
        ("only tokenizer.json is read", "save_pretrained("),
    ),
    "no tokenizer": (
        without("tokenizer.json"),
        ("no tokenizer.json", "take tokenize, detokenize, ensemble out of models"),
    ),
    "remote code": (
        saying(model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}),
        ("model type 'mine' is not supported", "code of its own (auto_map), which is not run"),
    ),
    "unknown": (saying(model_type="no_such_model"), ("'no_such_model' is not supported", "serve a family of docs")),
    "quantised": (
        saying(quantization_config={"quant_method": "gptq"}),
        ("quantised weights", "base_model of its card", "another of it in bfloat16"),
    ),
    "mamba": (saying(model_type="mamba"), ("'mamba' is not supported: it keeps state", "serve a model with attention")),
    "falcon": (saying(model_type="falcon", alibi=False), ("its attention cannot be replaced", "Falcon 3")),
    "images": (saying(vision_config={"depth": 2}), ("image input", "text-only model")),
    "ALiBi": (saying(alibi=True), ("ALiBi", "rotary or learned")),
    "no language model": (saying(architectures=["LlamaForSequenceClassification"]), ("ForSequenceClassification",)),
    "dynamic": (saying(rope_scaling={"type": "dynamic", "factor": 2.0}), ("dynamic rotary scaling",)),
    "no key heads": (saying(num_key_value_heads=0), ("num_key_value_heads of config.json is 0", "from 1")),
    "layers of nothing": (saying(num_hidden_layers=None), ("num_hidden_layers of config.json is None",)),
    "ends in words": (
        with_text("generation_config.json", '{"eos_token_id": ["<end>"]}'),
        ("eos_token_id: got ['<end>']", "one token id or a"),
    ),
    "an index of no weights": (indexed(ONE, "config.json"), ("names 'config.json'", SAME)),
    "an index of a number": (indexed(ONE, 7), ("names 7 as", SAME)),
    "heads in words": (saying(num_attention_heads="4"), ("num_attention_heads of config.json is '4'",)),
    "layers by number": (saying(layer_types=2), ("layer_types of config.json is 2, allowed: a list",)),
    "an index of nothing": (indexed(), ("names no file",)),
    "in transformers alone": (saying(model_type="vit"), ("model type 'vit' is not supported",)),
    "types in a list": (saying(model_type=["llama"]), ("model type ['llama'] is not supported",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line_that_says_what_to_do(case: str, tmp_path: Path) -> None:
    build, wanted = REFUSED[case]
    begun = time.process_time()
    with pytest.raises(SettingError) as caught:
        Server(Options(model=str(build(tmp_path)))).start()
    said = str(caught.value)
    assert time.process_time() - begun < SECONDS
    assert "\n" not in said
    assert len(said) < 2000, "nobody reads more"
    assert "who must" not in said
    assert all(part in said for part in wanted), said
    assert str(tmp_path) in said


def test_the_command_takes_seconds(tmp_path: Path) -> None:
    folder = written(tmp_path, model_type="no_such_model")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "covey.launcher", "--model", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2
    assert done.stderr.startswith(f"covey: cannot start: {folder}: ")
    assert len(done.stderr.splitlines()) == 1
    assert after.ru_utime - before.ru_utime < SECONDS


@pytest.mark.parametrize(
    ("kind", "most", "said"),
    [
        (resource.RLIMIT_NOFILE, 64, "64 open files (ulimit -n); raise the limit to "),
        (
            resource.RLIMIT_AS,
            2 << 30,
            f"{2 << 30} bytes of address space (ulimit -v); raise the limit to {4 << 30} or more",
        ),
    ],
)
def test_a_limit_that_is_too_low_is_named_before_the_start(kind: int, most: int, said: str) -> None:
    words = [sys.executable, "-m", "covey.launcher"]
    limit = partial(resource.setrlimit, kind, (most, most))
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"covey: cannot start: a process may have only {said}")


def test_a_drafter_of_another_tokenizer_is_refused_and_one_that_fits_drafts(tmp_path: Path) -> None:
    other = written(tmp_path / "other", vocab_size=97)
    (other / "tokenizer.json").unlink()
    said = "cannot draft .* a vocabulary of 97 tokens, .* no tokenizers .* -m covey_training drafter --target"
    with pytest.raises(SettingError, match=said):
        Server(Options(drafter=str(other))).start()
    fits = written(tmp_path / "fits", vocab_size=VOCABULARY + 128)  # padded
    options = Options(drafter=str(fits))
    preflight.weights(options, preflight.models(options))
    assert preflight.left_out(options, preflight.models(options)) == {}
    deployment = options.deployment()
    assert deployment.speculation.drafters[0] == GENERAL
    assert deployment.drafter.folder_of(GENERAL) == str(fits)
    assert f"Drafting: {GENERAL} ({fits})" in ready_message(options, "log")
    assert "drafts better" not in ready_message(options, "log", {"draft_code": "another tokenizer"})
    plain = Options(profile="qwen2.5-7b", drafter=str(fits)).deployment()
    assert GENERAL in plain.models
    assert plain.speculation.drafters[0] == GENERAL


def cached(home: Path, name: str, files: Path, revision: str = "main") -> Path:
    """A model in a cache as huggingface_hub lays it out: blobs, and a snapshot of links to them."""
    root = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    for folder in (root / "refs", root / "blobs", snapshot):
        folder.mkdir(parents=True)
    (root / "refs" / revision).write_text(COMMIT)
    for number, path in enumerate(sorted(files.iterdir())):
        shutil.copy(path, root / "blobs" / str(number))
        (snapshot / path.name).symlink_to(os.path.relpath(root / "blobs" / str(number), snapshot))
    return snapshot


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "home"


def test_a_name_is_the_folder_in_the_cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(tmp_path / "files")
    snapshot = cached(home, "somebody/tiny", files, "v2")
    assert hub.folder("somebody/tiny@v2") == str(snapshot)
    assert hub.folder(f"somebody/tiny@{COMMIT}") == str(snapshot)
    options = hub.with_folders(Options(model="somebody/tiny@v2", drafter="somebody/tiny@v2"))
    assert (options.model, options.drafter) == (str(snapshot), str(snapshot))
    preflight.weights(options, ("target",))
    with pytest.raises(SettingError, match=r"^somebody/tiny is neither a folder nor .* run hf download$"):
        hub.folder("somebody/tiny")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "somebody" / "tiny").mkdir(parents=True)
    assert hub.folder("somebody/tiny") == "somebody/tiny", "a folder goes before the hub's name"
    assert hub.folder("/no/such/folder") == "/no/such/folder"


def test_a_head_may_be_named_on_the_hub(home: Path, tmp_path: Path) -> None:
    snapshot = cached(home, "somebody/head", written(tmp_path / "files", draft_vocab_size=9))
    options = hub.with_folders(Options(drafter="somebody/head"))
    assert (options.drafter, options.deployment().target.head) == (str(snapshot), HEAD)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba"}, "it keeps state"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}, "quantised weights"),
    ],
)
def test_what_the_configuration_rules_out_is_not_fetched(
    config: dict[str, Any], said: str, home: Path, tmp_path: Path
) -> None:
    files = written(tmp_path / "files", **config)
    (files / WEIGHTS).unlink()
    cached(home, "somebody/refused", files)
    with pytest.raises(SettingError, match=said):
        hub.folder("somebody/refused")
