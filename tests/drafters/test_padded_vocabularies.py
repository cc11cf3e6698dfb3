"""Drafters whose outputs are padded to another size than their target's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from covey.contracts.ports import Drafter
from covey.contracts.profile import Profile, TargetSettings
from covey.contracts.types import Rule, Sampling
from covey.drafters import load_drafter
from covey.drafters.neural import NeuralDrafter
from covey.target.runner import TargetRunner
from covey.text.grammar import Grammar, compiled, tokenizer_of
from tests.bundled import MODELS
from tests.drafters.drafting import Sender, Text, rows_of
from tests.drafters.neural_reference import SAMPLINGS, TINY, VOCAB
from tests.engines import answers
from tests.fakes import Collector, request
from tests.models.tiny_models import build, padded
from tests.static_planner import StaticPlanner

FEW, MANY = VOCAB - 9, VOCAB + 13
EVERY = [
    *SAMPLINGS,
    Sampling(temperature=1.0, top_k=FEW + 4, seed=21),
    Sampling(temperature=0.8, logit_bias=((3, 2.0), (VOCAB - 1, 50.0)), seed=22),
    Sampling(temperature=1.0, rule=Rule.REJECTION, seed=23),
    Sampling(temperature=1.0, top_k=FEW + 4, top_p=0.9, rule=Rule.REJECTION, seed=24),
]


@pytest.fixture(scope="module", params=["llama", pytest.param("qwen2", marks=pytest.mark.slow), "phi"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last of them is run by PyTorch, and its outputs have a bias."""
    return build(tmp_path_factory.mktemp("models") / "model", request.param, num_hidden_layers=1)


def load(folder: Path, vocab_size: int = VOCAB) -> NeuralDrafter:
    return NeuralDrafter.load(folder, TINY, name="draft", vocab_size=vocab_size)


def texts(rng: np.random.Generator) -> list[Text]:
    """Some of their tokens the drafter of FEW tokens lacks."""
    found = [Text(tag, rng.integers(2, VOCAB, 12 + 9 * tag).tolist(), each) for tag, each in enumerate(EVERY)]
    for text in found:
        text.tokens[-1 - text.tag % 3] = VOCAB - 1
    return found


def replies(drafter: NeuralDrafter, read_as: Callable[[int], int]) -> list[tuple[list[list[int]], list[list[int]]]]:
    """Return what a drafter proposes for texts whose tokens `read_as` changes: chains that one call draws, chains with
    their distributions, and trees."""
    rng, sender, items, found = np.random.default_rng(5), Sender(drafter), texts(np.random.default_rng(6)), []
    for item in items:
        item.tokens = [read_as(token) for token in item.tokens]
    for turn in range(9):
        reply = sender.send(items, 4, 1 + turn % 3 // 2, q_rows=turn % 3 == 1)
        assert not reply.status.any()
        assert reply.trees.tokens.max() < drafter.info().vocab_size
        if reply.trees.q_ids is not None and reply.trees.q_probs is not None:
            assert reply.trees.q_ids[reply.trees.q_probs > 0].max() < drafter.info().vocab_size
        found.append((rows_of(reply.trees), reply.trees.parents.tolist()))
        for item, own in zip(items, rows_of(reply.trees)):
            more = [*own[: turn % 3], *rng.integers(2, VOCAB, 1 + turn % 2).tolist(), VOCAB - 1 - turn % 2]
            item.tokens += [read_as(token) for token in more]
            item.rounds += 1
    drafter.check()
    return found


def test_tokens_that_a_drafter_lacks_are_read_as_one_that_it_has(model: Path, tmp_path: Path) -> None:
    drafter = load(padded(tmp_path / "few", model, FEW))
    assert drafter.info().vocab_size == FEW
    known = replies(drafter, lambda token: token if token < FEW else 0)
    assert replies(load(tmp_path / "few"), lambda token: token) == known


def test_tokens_that_a_target_lacks_are_not_proposed(model: Path, tmp_path: Path) -> None:
    many = padded(tmp_path / "many", model, MANY)
    assert load(many).info().vocab_size == VOCAB
    assert replies(load(many), int) == replies(load(model), int)
    item = Text(1, texts(np.random.default_rng(6))[0].tokens, Sampling(temperature=3.0, seed=5))
    asked = Sender(load(many, vocab_size=0))
    assert max(max(rows_of(asked.send([replace(item, tag=tag)], 8).trees)[0]) for tag in range(9)) >= VOCAB


def test_a_larger_drafter_is_opened_with_the_tokens_of_its_target(tmp_path: Path) -> None:
    """Both have more outputs than their tokenizer has tokens."""
    target, larger = (padded(tmp_path / str(size), MODELS / "target" / "1", size) for size in (4160, 4224))
    drafter = load_drafter("neural", larger, target, Profile("test", drafter=TINY), name="draft")
    assert drafter.info().vocab_size == 4160
    sampled = [Text(tag, [300 + tag, 310], Sampling(3.0, seed=tag)) for tag in range(16)]
    tokens = Sender(drafter).send(sampled, 6).trees.tokens
    assert 4096 <= tokens.max() < 4160


@pytest.mark.parametrize(("outputs", "drafted"), [(4096, 4000), (4224, 4096)])
def test_grammars_hold_for_models_that_are_padded_apart(outputs: int, drafted: int, tmp_path: Path) -> None:
    """The tokenizer has more tokens than either of them."""
    bundled, models = MODELS / "target" / "1", [tmp_path / "target", tmp_path / "drafter"]
    tokenizer = Tokenizer.from_file(str(bundled / "tokenizer.json"))
    tokenizer.add_special_tokens([f"<{number}>" for number in range(160)])
    for folder, size in zip(models, (outputs, drafted)):
        padded(folder, bundled, size)
        tokenizer.save(str(folder / "tokenizer.json"))
    settings = TargetSettings(device="cpu", kv_blocks=400, block_size=8, threads=1)
    target = TargetRunner.load(models[0], settings, token_budget=256, name="target")
    drafter = load(models[1], outputs)
    known = tokenizer_of(str(models[0]), outputs, (0,))
    words = compiled("grammar_regex", "[A-Z][a-z]{1,9}(,? [a-z]{1,9}){3,6}[.]", known)
    anything = compiled("grammar_json", "{}", known)
    samplings = [
        Sampling(0.8 * (seed % 2), grammar=(words, anything)[seed // 2], seed=seed, end_ids=(0,)) for seed in range(4)
    ]
    plain, found = run(target, {}, samplings), run(target, {"draft": drafter}, samplings)
    assert found.tokens == plain.tokens
    assert acceptance(found) > 0.3
    for key, sampling in enumerate(samplings):
        grammar, tokens = Grammar(sampling.grammar, known), plain.tokens[key]
        grammar.follow(np.asarray(tokens[:-1] if tokens[-1] == 0 else tokens, np.int32))
        assert grammar.after([]) is not None


def acceptance(sink: Collector) -> float:
    return sum(each.accepted for each in sink.ended.values()) / sum(each.drafted for each in sink.ended.values())


def run(target: TargetRunner, drafters: dict[str, Drafter], samplings: Sequence[Sampling]) -> Collector:
    rng = np.random.default_rng(9)
    asked = [
        request(key, rng.integers(2, VOCAB, 5 + 7 * (key % 3)).tolist(), 60, sampling=sampling)
        for key, sampling in enumerate(samplings)
    ]
    limits = {"max_running": 32, "token_budget": 256, "growth_tokens": 16, "block_size": 8}
    found = answers(target, asked, StaticPlanner(3, 1), drafters, **limits)
    target.check()
    return found
