"""The learned router sends a prompt to its domain's specialist, and elsewhere is `fixed` and says so."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from covey import prompts
from covey.bandits.drafters import policies, router
from covey.bandits.drafters.choice import Bandit
from covey_training import architecture
from covey_training import router as training
from covey_training.architecture import SPECIALISTS

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "target" / "1"
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
DRAFTERS = (*architecture.DRAFTERS, SPECIALISTS["edits"])
DIGEST = hashlib.sha256((FOLDER / "tokenizer.json").read_bytes()).hexdigest()


def make(text: str, names: Sequence[str] = DRAFTERS, digest: str = DIGEST) -> Bandit:
    ids = np.asarray(TOKENIZER.encode(text).ids, np.int32)
    return policies.find("router").make(policies.Setting(names, np.random.default_rng(0), 5, 64, ids, digest))


@pytest.mark.parametrize("domain", prompts.DOMAINS)
def test_a_bundled_prompt_goes_to_its_specialist(domain: str) -> None:
    for names in (DRAFTERS, DRAFTERS[::-1]):
        chosen = [names[make(text, names).choose(range(len(names)))] for text in prompts.load(domain)]
        assert set(chosen) == {SPECIALISTS[domain]}


@pytest.mark.parametrize(
    ("text", "drafter"),
    [
        ("Question: A farmer has 12 cows and buys 7 more. How many cows are there?\nAnswer:", "draft_math"),
        ("English: Where is the station?\nGerman:", "draft_translate"),
        ("# Python\nimport os\n\ndef sizes(folder):\n    for name in os.listdir(folder):\n", "draft_code"),
        ("User: Do you like football?\nAssistant: I do!\nUser: Which team?\nAssistant:", "draft_chat"),
    ],
)
def test_so_does_one_that_it_never_saw(text: str, drafter: str) -> None:
    assert DRAFTERS[make(text).choose(range(len(DRAFTERS)))] == drafter


def test_the_next_likeliest_drafts_while_the_best_does_not_serve() -> None:
    bandit = make(prompts.load("math")[0])
    order, left = [], list(range(len(DRAFTERS)))
    while left:
        order.append(bandit.choose(left))
        left.remove(order[-1])
    assert [DRAFTERS[order[0]], DRAFTERS[order[-1]]] == ["draft_math", "draft_general"]  # unknown to it, so last


@pytest.mark.parametrize(
    ("names", "digest", "said"),
    [
        (DRAFTERS, "0" * 64, "was trained for another tokenizer"),
        (DRAFTERS, "", "was trained for another tokenizer"),
        (("tiny", "small"), DIGEST, "knows none of the drafters tiny, small"),
    ],
)
def test_elsewhere_it_is_fixed_and_says_so_once(
    names: Sequence[str], digest: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    router._fitting.cache_clear()
    with caplog.at_level(logging.WARNING, "covey.planner"):
        for _ in range(3):
            bandit = make(prompts.load("math")[0], names, digest)
            assert (bandit.choose(range(len(names))), bandit.choose([1])) == (0, 1)
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_the_command_makes_the_weights_in_the_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training.run(FOLDER, tmp_path / "router.npz")
    assert "240 of 240 right" in capsys.readouterr().out
    here = Path(router.__file__).with_name("router.npz")
    assert here.stat().st_size < 100_000
    with np.load(tmp_path / "router.npz") as made, np.load(here) as kept:
        assert str(made["tokenizer"]) == str(kept["tokenizer"]) == DIGEST
        assert made["drafters"].tolist() == kept["drafters"].tolist()
        assert np.allclose(made["matrix"], kept["matrix"], atol=0.02)
        assert np.allclose(made["bias"], kept["bias"], atol=0.02)
