"""The proposer as vLLM sees it: its settings, its vocabulary, and that nothing of it ends a step."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from covey.contracts.errors import SettingError
from covey.contracts.profile import Profile
from covey.drafters import load_drafter
from covey_vllm import CoveyProposer
from covey_vllm.repair import expand
from covey_vllm.texts import Texts
from tests.fakes import VOCAB, continuation
from tests.in_vllm.runner import Runner, config
from tests.loop.hash_drafters import HashDrafter

LOOKUPS = {"ngram": "ngram", "suffix": "suffix"}
PROMPTS = {f"r{index}": [5, 6, 7, 8] * 3 + [index] for index in range(9)}
EXPECTED = {name: continuation(prompt, 40) for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("demo-cpu", "covey: got 'demo-cpu', allowed: a table"),
        ({"target": {}}, "'target' is not for vLLM"),
        ({"memory": {"policy": "thresholds"}}, "'memory' is not for vLLM"),
        ({"slo": {}}, "'slo' is not for vLLM"),
        ({"speculation": {"width": 2}}, "speculation.width is refused: vLLM verifies only chains"),
        ({"speculation": {"policy": "adaserve"}}, "adaserve is refused"),
        ({"speculation": {"drafter_policy": "ucb-bd"}}, "ucb-bd is refused"),
        ({"speculation": {"policy": "fixed:5"}}, "5 drafts, allowed: num_speculative_tokens, 4, at most"),
        ({"speculation": {"max_depth": 6}}, "6 drafts"),
        ({"speculation": {"polcy": "adaptive"}}, "unknown key 'speculation.polcy'"),
        ({"speculation": {"lookup": "off"}}, "speculation.lookup is refused"),
        ({"drafter": {"folders": ["a:b"]}}, "drafter.folders is refused"),
        ({"star": {"callers": "file"}}, "star.callers is refused"),
        ({"drafters": {}}, "drafters: got {}"),
        ({"drafters": {"a b": "ngram"}}, "letters, digits"),
        ({"drafters": {"small": "nowhere"}}, "got 'nowhere', allowed: ngram, suffix, a folder, or HOST:PORT/MODEL"),
        ({"drafters": {"far": 7}}, "got 7"),
    ],
)
def test_what_vllm_has_no_use_for_is_refused_by_name(table: object, said: str) -> None:
    with pytest.raises(SettingError) as problem:
        CoveyProposer(config(table))
    assert said in str(problem.value)


def test_settings_are_a_profiles() -> None:
    table = {"drafters": LOOKUPS, "speculation": {"policy": "nightjar", "max_depth": 3}, "drafter": {"ngram_max": 3}}
    settings = CoveyProposer(config(table)).settings
    assert settings.profile.speculation.drafters == ("ngram", "suffix")
    assert (settings.profile.speculation.max_depth, settings.profile.drafter.ngram_max) == (3, 3)
    assert [settings.kind(name) for name in settings.drafters] == ["ngram", "suffix"]
    unset = CoveyProposer(config()).settings
    assert (unset.profile.speculation.max_depth, unset.profile.speculation.policy) == (4, "adaptive")
    assert unset.profile.speculation.drafters == ("suffix",)


@pytest.mark.parametrize("policy", ["adaptive", "off", "fixed:4", "nightjar", "dsd"])
def test_lookups_draft_and_texts_stay(policy: str) -> None:
    table = {"drafters": LOOKUPS, "speculation": {"policy": policy, "drafter_policy": "fixed:suffix"}}
    proposer = CoveyProposer(config(table))
    proposer.load_model(object())
    runner = Runner(proposer, rows=4)
    assert runner.serve(PROMPTS, 40, preempts=0.05) == EXPECTED
    again = runner.serve({f"again {name}": prompt for name, prompt in PROMPTS.items()}, 40)
    assert list(again.values()) == list(EXPECTED.values())
    assert policy != "fixed:4" or runner.accepted > 0
    assert policy != "off" or runner.proposed == 0
    assert not [name for name, _, _ in proposer.figures() if name == "covey_set_aside_total"]


def test_drafts_never_pass_the_longest_text() -> None:
    proposer = CoveyProposer(config({"drafters": {"ngram": "ngram"}, "speculation": {"policy": "fixed:4"}}, limit=20))
    proposer.use({"ngram": HashDrafter(1.0)})
    tokens = np.ones((1, 20), np.int32)
    for length, most in ((10, 4), (16, 3), (18, 1), (19, 0)):
        drafts = proposer.propose([[1]], np.array([length], np.int32), tokens)
        assert len(drafts[0]) <= most


def test_a_larger_vocabulary_is_refused_and_a_smaller_one_is_not(tiny: Path) -> None:
    small = load_drafter("neural", tiny, tiny, Profile("test"), name="small")
    table = {"drafters": {"small": str(tiny)}}
    for vocab in (VOCAB, VOCAB + 7):
        CoveyProposer(config(table, vocab=vocab)).use({"small": small})
    with pytest.raises(SettingError, match=f"vocabulary of {VOCAB} tokens, vLLM's model one of 50"):
        CoveyProposer(config(table, vocab=50)).use({"small": small})


def test_neural_drafters_are_loaded_beside_vllms_model(tiny: Path) -> None:
    proposer = CoveyProposer(config({"drafters": {"small": str(tiny), **LOOKUPS}}, target=str(tiny)))
    proposer.load_model()
    runner = Runner(proposer, rows=4)
    assert runner.serve(PROMPTS, 40) == EXPECTED
    assert runner.proposed > 0


def test_ranks_whose_drafts_vllm_drops_draft_nothing(tiny: Path) -> None:
    proposer = CoveyProposer(config({"drafters": {"small": str(tiny)}}, target=str(tiny), rank=1))
    proposer.load_model()
    assert Runner(proposer, rows=4).serve(PROMPTS, 40) == EXPECTED
    assert not proposer.drafters


def test_a_failure_of_ours_ends_drafts_and_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = CoveyProposer(config({"drafters": LOOKUPS}))
    proposer.load_model()
    runner = Runner(proposer, rows=4)

    def fail(*_: Any) -> Any:
        raise ValueError("a mistake")

    monkeypatch.setattr(Texts, "follow", fail)
    assert runner.serve(PROMPTS, 40) == EXPECTED
    assert runner.proposed == 0
    assert ("covey_set_aside_total", {"part": "proposer"}, 1.0) in list(proposer.figures())


def test_nothing_is_drafted_for_requests_of_which_nobody_says_whose_they_are() -> None:
    """They would share texts, whoever they are of."""
    proposer = CoveyProposer(config({"drafters": LOOKUPS}))
    proposer.load_model()
    proposer.attend(lambda: {}["gone"], ())
    runner = Runner(proposer, rows=4)
    assert runner.serve(PROMPTS, 40) == EXPECTED
    assert runner.proposed == 0
    assert ("covey_set_aside_total", {"part": "requests"}, 1.0) in list(proposer.figures())


def test_a_program_that_steps_the_engine_says_how_requests_are_drafted_for_and_hears_of_rounds() -> None:
    proposer = CoveyProposer(config({"drafters": {"hash": "ngram"}, "speculation": {"policy": "fixed:4"}}))
    proposer.use({"hash": HashDrafter(1.0)})
    runner = Runner(proposer, rows=4)
    plain = SimpleNamespace(extra_args={"speculation": "off"})

    def named() -> list[Any]:
        return [SimpleNamespace(req_id=name, sampling_params=plain) for name in runner.running]

    proposer.attend(named, runner.texts)
    assert runner.serve(PROMPTS, 40) == EXPECTED
    assert runner.proposed == 0
    plain.extra_args = None
    again = runner.serve({f"again {name}": prompt for name, prompt in PROMPTS.items()}, 40)
    assert list(again.values()) == list(EXPECTED.values())
    assert runner.accepted == runner.proposed > 0
    news = json.loads(json.dumps(proposer.news()))
    assert news["states"] == {"hash": "serving"}
    assert 0 < sum(each["accepted"] for each in news["rounds"]) <= runner.accepted
    assert len(news["decisions"]) > 0
    later = proposer.news()
    assert later is not None
    assert (later["rounds"], later["decisions"]) == ([], [])


def test_settings_are_expanded_to_drafts() -> None:
    output = torch.zeros(5)
    expand(output, torch.tensor([0.5, 0.0, 0.75]), torch.tensor([2, 2, 5], dtype=torch.int32), 0, 1)
    assert output.tolist() == [0.5, 0.5, 0.75, 0.75, 0.75]
    numbers = torch.zeros(3, dtype=torch.int32)
    expand(numbers, torch.tensor([4, 0], dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32), 0, 9)
    assert numbers.tolist() == [4, 9, 9]
