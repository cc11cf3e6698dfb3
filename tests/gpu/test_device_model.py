"""A model by kernels is the model: interpreted where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.contracts.errors import UnsupportedModel
from covey.contracts.profile import TargetSettings
from covey.contracts.types import Open, Sampling, TargetWork, Trees
from covey.gpu import layers
from covey.gpu import model as device_model
from covey.gpu.model import DeviceModel
from covey.models.model import PagedModel
from covey.target.runner import TargetRunner
from tests.interpreted import sum_in_order
from tests.models.bits import check, check_tree
from tests.models.tiny_models import Reader, build, generate, prompts

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
MODELS = {
    "llama": {"num_hidden_layers": 2},
    "qwen2": {"num_hidden_layers": 2, "tie_word_embeddings": True},
    "qwen3": {"num_hidden_layers": 2},
    "mistral": {"num_hidden_layers": 2, "sliding_window": 600, "num_attention_heads": 6, "num_key_value_heads": 2},
}
# No width, head or piece of a gate is as long as what is read at a time.
ODD = {
    "num_hidden_layers": 1,
    "num_attention_heads": 7,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "hidden_size": 200,
    "intermediate_size": 1100,
}
ALLOWED = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = build(tmp_path_factory.mktemp(family), family, **MODELS[family])
        return made[family]

    return folder


@pytest.fixture(scope="module")
def llama(saved: Callable[[str], Path]) -> DeviceModel:
    return load(saved("llama"), max_pass_tokens=16)


def load(folder: Path, **changes: object) -> DeviceModel:
    settings: dict[str, object] = {"dtype": "float32", "blocks": 40, "block_size": 4, "max_pass_tokens": 64}
    return DeviceModel(folder, device=WHERE, **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "changes", "dtype"),
    [
        ("llama", {}, "float32"),
        ("qwen2", {"num_hidden_layers": 1}, "bfloat16"),
        ("qwen3", ODD, "float32"),
        *(pytest.param(family, {}, "float32", marks=pytest.mark.slow) for family in ("qwen2", "qwen3", "mistral")),
    ],
)
def test_rows_in_any_company_read_as_they_do_alone(
    family: str, changes: dict[str, int], dtype: str, tmp_path: Path
) -> None:
    """Chunks and single tokens of several rows in one pass, over blocks of several segments."""
    folder = build(tmp_path, family, **MODELS[family] | changes)
    model = load(folder, dtype=dtype)
    alike = PagedModel(folder, dtype="float64", device="cpu", blocks=40, block_size=4, numerics="fast")
    rows = prompts(np.random.default_rng(1), 97, 9, 21, 33)
    here, there = Reader(model, rows, seed=2), Reader(alike, rows, seed=3)
    for steps in ([(0, 0, 9), (1, 0, 13), (2, 0, 32)], [(2, 32, 33), (1, 13, 21)]):
        for found, expected in zip(here.read(steps), there.read(steps)):
            assert (found.cpu() - expected).norm() <= ALLOWED[dtype] * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype", "proved"),
    [
        ("qwen2", "bfloat16", False),
        *((family, "float32", True) for family in MODELS),
        ("llama", "float16", True),
    ],
)
def test_invariant_numerics(
    family: str, dtype: str, proved: bool, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token's logits are the same bits alone, in chunks of several tiles, in any company and in trees, in one part of
    its keys and in several; and at load, which takes longest here, that is seen."""
    sum_in_order(monkeypatch)
    if not proved:
        monkeypatch.setattr(DeviceModel, "_prove_invariant", lambda *_: None)
    monkeypatch.setattr(device_model, "span_of", lambda *_: 64)
    model = load(saved(family), dtype=dtype, numerics="invariant", blocks=40, max_pass_tokens=20)
    assert (model.numerics, model.windows, model.tiling.spans) == ("invariant", False, 4)
    rng = np.random.default_rng(6)
    long, short = prompts(rng, 97, 68, 5)
    if proved:
        check(model, [short, long[:7]], 3, 6)
    check_tree(model, short, 6, nodes=4 if proved else 3)
    alone, together = Reader(model, [long], 1), Reader(model, [short, long], 2)
    first = torch.cat([alone.read([(0, start, min(start + 13, 68))])[0] for start in range(0, 68, 13)])
    again = [together.read([(1, start, start + 20)])[0] for start in (0, 20, 40)]
    again += [together.read([(1, 60, 66), (0, 0, 3)])[0], together.read([(0, 3, 5), (1, 66, 68)])[1]]
    assert torch.equal(torch.cat(again), first)


def test_what_is_not_invariant_after_all_is_refused(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a row's bits depend on how many there are: products of one row are off by a bit."""
    sum_in_order(monkeypatch)
    product = layers.Fixed.product

    def off(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found = product(x, weight, bias)
        return found.nextafter(found.new_tensor(torch.inf)) if len(x) == 1 else found

    monkeypatch.setattr(layers.Fixed, "product", staticmethod(off))
    with pytest.raises(UnsupportedModel, match="a token's bits depend on the rest of its pass"):
        load(saved("llama"), numerics="invariant", blocks=8, max_pass_tokens=12)


@pytest.mark.slow
def test_greedy_text_is_that_of_transformers(saved: Callable[[str], Path], llama: DeviceModel) -> None:
    rng = np.random.default_rng(4)
    texts = prompts(rng, 97, 5, 18)
    found = Reader(llama, texts, room=6).greedy(5, 16, rng)
    assert found == [generate(saved("llama"), text, 5) for text in texts]


@pytest.mark.parametrize(
    ("numerics", "temperature"),
    [("fast", 1.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("fast", 0.0), ("invariant", 1.0)))],
)
def test_a_target_emits_the_same_with_any_trees(
    numerics: str, temperature: float, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees that branch, some of whose paths are what is drawn: what is emitted is what plain decoding emits."""
    if numerics == "invariant":
        sum_in_order(monkeypatch)
        monkeypatch.setattr(device_model, "span_of", lambda *_: 64)
    prompt = prompts(np.random.default_rng(5), 97, 60 if numerics == "invariant" else 10)[0]
    sampling = Sampling(temperature=temperature, seed=9)
    folder = saved("qwen3")
    settings = TargetSettings(dtype="float64", device="cpu", kv_blocks=40, block_size=4, run_ahead=False, threads=1)
    plain = run(TargetRunner.load(folder, settings, token_budget=64, name="plain"), prompt, sampling, 9, None)
    target = TargetRunner(
        load(folder, numerics=numerics), blocks=40, block_size=4, reuse=True, name="target", folder=str(folder)
    )
    assert run(target, prompt, sampling, 9, plain) == plain
    target.check()


def run(target: TargetRunner, prompt: np.ndarray, sampling: Sampling, count: int, known: list[int] | None) -> list[int]:
    """`count` tokens; with what is known to come, verified in trees: a right path among wrong siblings."""
    opening = Open(1, prompt, len(prompt), sampling)
    found: list[int] = []
    rng, epoch = np.random.default_rng(6), 0
    while len(found) < count:
        base = len(prompt) + len(found)
        chunk = base if not found else 1
        trees = Trees.empty(1)
        if known is not None and found:
            trees = tree_around(known[len(found) : len(found) + 3], rng)
        reply = target.step(
            TargetWork(
                tags=np.array([1], np.int32),
                base=np.array([base], np.int32),
                chunk=np.array([chunk], np.int32),
                trees=trees,
                opens=(opening,) if not found else (),
                sequence=len(found) + 1,
                origin=7,
            )
        )
        epoch = reply.epoch
        if known is not None and len(trees.tokens):
            assert reply.accepted[0] == min(3, len(known) - len(found)), "a right path was refused"
        found += reply.tokens.tolist()
    assert epoch
    return found[:count]


def tree_around(path: list[int], rng: np.random.Generator) -> Trees:
    """A path with a wrong sibling before each of its nodes, and a wrong child below each of those."""
    tokens, parents, above = [], [], -1
    for token in path:
        wrong = (token + int(rng.integers(1, 90))) % 97
        tokens += [wrong, (wrong + 5) % 97, token]
        parents += [above, len(tokens) - 3, above]
        above = len(tokens) - 1
    return Trees(
        np.array([0, len(tokens)], np.int32),
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        -np.arange(1, len(tokens) + 1, dtype=np.float32),
    )


def test_recordings_made_ahead_leave_memory_alone(llama: DeviceModel) -> None:
    Reader(llama, prompts(np.random.default_rng(8), 97, 12)).read([(0, 0, 12)])
    before = llama.store.segment(0).clone()
    llama.record(rows=2, tokens_per_row=1)
    assert torch.equal(before, llama.store.segment(0))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma2", {}, "do not compute models of type gemma2"),
        ("mistral", {}, "windows of at least"),
        ("llama", {"hidden_act": "gelu"}, "do not compute"),
        ("llama", {"head_dim": 12}, "heads of 12 elements"),
    ],
)
def test_what_the_kernels_do_not_compute_is_refused(
    tmp_path: Path, family: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        load(build(tmp_path, family, **changes))


def test_passes_beyond_what_it_was_built_for_are_refused(llama: DeviceModel) -> None:
    row = prompts(np.random.default_rng(8), 97, 17)
    with pytest.raises(ValueError, match="a pass of 17 tokens; this model was built for 16"):
        Reader(llama, row).read([(0, 0, 17)])
    with pytest.raises(ValueError, match="tokens: got 97, allowed: ids from 0 to 96"):
        Reader(llama, [np.array([5, 97], np.int32)]).read([(0, 0, 2)])
