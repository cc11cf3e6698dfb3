"""Synthetic pairs: they agree as often as wanted, cost what their shape says, and are served like any other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.types import Sampling
from covey.drafters import load_drafter
from covey.target.opening import load_target
from covey.text.tokenization import load_tokenizer
from covey_training.__main__ import main
from covey_training.aligned import SIZES, Pair, build, default_layers, save, shape
from covey_training.aligned.agreement import Panel, measure
from covey_training.aligned.build import search
from covey_training.aligned.folders import DRAFTER, fitted
from covey_training.aligned.weights import damp, first_layers
from tests.bundled import MODELS
from tests.engines import answers
from tests.fakes import request
from tests.static_planner import StaticPlanner

CPU = torch.device("cpu")
OTHER = Panel(seed=1 << 40)  # texts that no pair was built on
USUAL = 0.65
BUNDLED = MODELS / "target" / "1"

pytestmark = pytest.mark.slow  # pairs take seconds to build


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Passes this narrow take longer with two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(agreement: float, layers: int = 1, seed: int = 0) -> Pair:
    return build(shape("tiny"), layers, agreement, seed, CPU, torch.float32)


@pytest.fixture(scope="module")
def pairs() -> Callable[[float], Pair]:
    return cache(make)


@pytest.fixture(scope="module")
def folder(pairs: Callable[[float], Pair], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligned")
    save(pairs(USUAL), folder, BUNDLED)
    return folder


@pytest.mark.parametrize("rate", [USUAL, 0.35, 0.92])
def test_texts_that_no_search_has_seen_agree_as_wanted(pairs: Callable[[float], Pair], rate: float) -> None:
    pair = pairs(rate)
    found = measure(pair.target, pair.drafter, OTHER)
    assert found.coupled == pytest.approx(rate, abs=0.03)
    assert pair.measured.coupled == pytest.approx(rate, abs=0.03)
    assert found.greedy == pytest.approx(rate, abs=0.1)
    assert 2.0 < found.entropy < 4.0


def test_the_more_the_later_layers_add_the_less_often_the_first_agree(pairs: Callable[[float], Pair]) -> None:
    target = copy.deepcopy(pairs(USUAL).target)
    drafter = first_layers(target, 1)
    rates = []
    for factor in (0.0, 0.03, 0.1, 0.3, 1.0):
        damp(target, pairs(USUAL).seed, 1, factor)
        rates.append(measure(target, drafter, Panel(seed=5, rows=24)).coupled)
    assert rates[0] == 1.0
    assert (np.diff(rates) < -0.05).all()


def test_the_search_does_not_creep_along_a_bent_curve() -> None:
    """One of 415 M parameters: straight lines from its ends, whose agreement is far off, need seven steps."""
    dampings = np.log([0.001, 0.0052, 0.0101, 0.0209, 0.0455, 0.0603, 0.0675, 1.0])
    agreements = np.array([0.992, 0.95, 0.907, 0.822, 0.648, 0.544, 0.503, 0.002])
    asked = []

    def agreement_at(damping: float) -> float:
        asked.append(damping)
        return float(1 / (1 + np.exp(-np.interp(np.log(damping), dampings, np.log(agreements / (1 - agreements))))))

    for wanted in (0.5, 0.65, 0.9):
        asked.clear()
        assert agreement_at(search(agreement_at, wanted)) == pytest.approx(wanted, abs=0.005)
        assert len(asked) - 1 <= 2 + 5


def test_the_drafter_is_the_target_s_first_layers(pairs: Callable[[float], Pair]) -> None:
    pair = pairs(USUAL)
    own = dict(pair.target.named_parameters())
    for name, parameter in pair.drafter.named_parameters():
        assert parameter.data_ptr() == own[name].data_ptr()
    ids = torch.arange(2, 34)[None]
    states = pair.target(ids, output_hidden_states=True).hidden_states
    assert torch.equal(pair.drafter.model(ids).last_hidden_state, pair.target.model.norm(states[1]))


def test_every_layer_of_the_target_runs_and_counts(pairs: Callable[[float], Pair]) -> None:
    target = pairs(USUAL).target
    layers = target.model.layers
    assert len(layers) == SIZES["tiny"]["num_hidden_layers"]
    for layer in layers:
        assert all(bool(weight.ne(0).all()) for weight in layer.parameters())
    states = target(torch.arange(2, 34)[None], output_hidden_states=True).hidden_states
    assert all(not torch.equal(before, after) for before, after in pairwise(states))


def test_a_seed_gives_the_same_pair_and_another_seed_another(pairs: Callable[[float], Pair]) -> None:
    first, again, other = pairs(USUAL), make(USUAL), make(USUAL, seed=1)
    assert again.damping == first.damping
    for one, same, different in zip(*(pair.target.state_dict().items() for pair in (first, again, other))):
        assert torch.equal(one[1], same[1])
        assert "norm" in one[0] or not torch.equal(one[1], different[1])


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_saved_folders_load_and_give_the_same_logits(pairs: Callable[[float], Pair], folder: Path, part: str) -> None:
    where = folder / {"target": "target", "drafter": DRAFTER}[part]
    loaded = AutoModelForCausalLM.from_pretrained(where)
    ids = torch.arange(2, 66).view(2, 32)
    torch.testing.assert_close(loaded(ids).logits, getattr(pairs(USUAL), part)(ids).logits, rtol=0, atol=1e-5)
    assert loaded.generation_config.eos_token_id == 0


def test_the_saved_profile_serves_the_pair_and_accepts_as_often(folder: Path) -> None:
    chosen = profile.load(str(folder / "aligned.toml"))
    assert (MODELS / DRAFTER / "config.pbtxt").is_file()
    target = load_target(chosen.target.folder, chosen, name="target")
    drafter = load_drafter("neural", chosen.drafter.folder_of(DRAFTER), chosen.target.folder, chosen, name=DRAFTER)
    assert drafter.info().vocab_size == target.info().vocab_size == 512
    asked = []
    for key in range(1, 17):
        prompt, sampling = np.random.default_rng(key).integers(2, 512, 12), Sampling(1.0, seed=key, end_ids=(0,))
        asked.append(request(key, prompt, 96, sampling=sampling))
    sink = answers(target, asked, StaticPlanner(1), {DRAFTER: drafter}, token_budget=256, block_size=16)
    assert all(len(tokens) == 96 for tokens in sink.tokens.values())  # no text ends by chance
    ends = sink.ended.values()
    assert sum(end.accepted for end in ends) / sum(end.drafted for end in ends) == pytest.approx(0.65, abs=0.07)


def test_the_saved_tokenizer_has_a_text_for_every_id(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "target")
    assert tokenizer is not None
    assert tokenizer.get_vocab_size() == 512
    text = "Où est la gare? 42\n"
    ids = tokenizer.encode(text).ids
    assert max(ids) < 512
    assert tokenizer.decode(ids) == text


def test_a_tokenizer_is_padded_for_a_larger_vocabulary() -> None:
    from tokenizers import Tokenizer

    learned = json.loads((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))
    padded = Tokenizer.from_str(json.dumps(fitted(learned, 5000)))
    usual = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    assert padded.get_vocab_size() == 5000
    assert padded.encode("def f(x): <4321>").ids == usual.encode("def f(x): <4321>").ids
    assert padded.decode([4321, 4999]) == " <4321> <4999>"


@pytest.mark.parametrize("size", SIZES)
def test_a_drafter_is_a_small_part_of_its_target(size: str) -> None:
    config = shape(size)
    assert 1 <= default_layers(config) <= config.num_hidden_layers // 8


def test_the_command_builds_and_says_how_to_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my pair"
    drawn_as = ["--agreement", "0.8", "--seed", "3", "--device", "cpu", "--dtype", "float32"]
    main(["aligned", "--size", "tiny", "--layers", "2", *drawn_as, "--out", str(out)])
    printed = capsys.readouterr().out
    assert f"make serve PROFILE='{out}/aligned.toml'" in printed
    assert profile.load(str(out / "aligned.toml")).drafter.folder_of(DRAFTER) == str(out / DRAFTER)
    assert json.loads((out / DRAFTER / "config.json").read_text())["num_hidden_layers"] == 2
    with pytest.raises(SystemExit, match="is not an empty folder"):
        main(["aligned", "--size", "tiny", "--agreement", "0.8", "--out", str(out)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--size tiny --agreement 1.5", "agreement: got 1.5, allowed: between 0 and 1"),
        ("--size tiny --agreement 0.5 --layers 8", "layers: got 8, allowed: 1 to 7"),
        ("--size tiny --agreement 0.5 --seed -1", "seed: got -1"),
        ("--size tiny --agreement 0.5 --dtype int8", "dtype: got 'int8'"),
        ("--size tiny --agreement 0.5 --device abacus", "device: got 'abacus'"),
    ],
)
def test_the_command_refuses_in_one_line(options: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["aligned", *options.split(), "--out", str(tmp_path / "pair")])
    assert str(refusal.value).startswith("covey: ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "pair").exists()


def test_an_agreement_out_of_reach_says_what_was_reached() -> None:
    with pytest.raises(SettingError, match=r"got 0\.3, reached 0\.[5-9]\d+ \(nothing damped\) to (0\.99\d|1\.000)"):
        make(0.3, layers=7)
