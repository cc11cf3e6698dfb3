"""The JSON that the benches promise, from made-up runs; what they write, and the profiles they derive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from covey.contracts import profile
from loadtest.bench import speedup
from loadtest.bench.derive import derive
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import Session, Wanted
from loadtest.bench.work import Answer


def made_up_speedup(repetitions: int = 4) -> speedup.SpeedupAnswers:
    """fixed:3 is twice as fast as off, the policy 1.25 times; one code prompt of each repetition loops when greedy."""
    measured = speedup.SpeedupAnswers()
    seconds = {OFF: 2.0, speedup.AUTO: 1.6} | {fixed(depth): 1.0 + abs(depth - 3) for depth in speedup.DEPTHS}
    for temperature in (speedup.GREEDY, speedup.HOT):
        for domain in ("code", "chat"):
            for repetition in range(repetitions):
                for loops in (False, True):
                    tokens = (7,) * 64 if loops and domain == "code" else tuple(range(64))
                    answers = {name: Answer(tokens, value, drafted=40, accepted=18) for name, value in seconds.items()}
                    measured.prompts[temperature, domain, repetition].append(answers)
    return measured


@pytest.mark.parametrize("part", ["overall", "overall_t1", "code", "chat"])
def test_speedup_has_the_keys_it_promises(part: str) -> None:
    found = made_up_speedup().summary()
    assert found[part]["best_static_over_off"] == 2.0
    assert found[part]["picked"] == ["fixed:3", "fixed:3"]
    assert found[part]["policy_over_off"] == pytest.approx(1.25)
    assert found[part]["policy_over_off_interval"] == pytest.approx([1.25, 1.25])


def test_loops_are_left_out_of_greedy_text_and_counted() -> None:
    found = made_up_speedup().summary()
    assert (found["code"]["looping"], found["code"]["prompts"]) == (4, 8)
    assert found["code"]["t1"]["looping"] == 0
    assert found["chat"]["looping"] == 0
    assert found["overall"]["looping"] == 4


def test_what_was_not_measured_is_null() -> None:
    found = speedup.SpeedupAnswers().summary()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["overall"]["best_static_over_off"] is None


def test_results_are_written_and_shown_with_what_they_depend_on(tmp_path: Path) -> None:
    quiet = Console(quiet=True)
    session = Session("speedup", Wanted(tmp_path / "deep" / "out.json", seed=5), quiet)
    session.summarise = made_up_speedup().summary
    session.interrupted = True
    result = session.write()
    assert json.loads((tmp_path / "deep" / "out.json").read_text()) == result
    assert result["interrupted"] is True
    assert (result["seed"], result["profile"]) == (5, profile.DEFAULT_PROFILE)
    assert {"hardware", "versions"} <= set(result)
    speedup.show(result, quiet)


def test_a_derived_profile_differs_where_it_was_told_to(tmp_path: Path) -> None:
    usual = profile.load(profile.DEFAULT_PROFILE)
    path = derive(usual, tmp_path / "wide.toml", models=("target", "covey"), speculation={"width": 3, "drafters": []})
    found = profile.load(str(path))
    assert found.name == "wide"
    assert found.models == ("target", "covey")
    assert (found.speculation.width, found.speculation.drafters) == (3, ())
    assert (found.target, found.scheduler, found.limits) == (usual.target, usual.scheduler, usual.limits)
