"""What is asked, and for which service level."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest

from covey import prompts
from covey.contracts.errors import SettingError
from covey_client.rates import MetricsSnapshot
from covey_client.status import Sample
from loadtest import asks, levels, options, questions
from loadtest.arrivals import Arrival
from loadtest.asks import AnswerLengths

LENGTHS = AnswerLengths(8, 32, context=200)
SOON = Arrival(0.0)


def asked(source: str, arrival: Arrival = SOON, count: int = 200) -> list[asks.RequestContent]:
    rng = random.Random(1)
    parsed = asks.parse(source, LENGTHS, questions.unformed())
    return [parsed.ask(arrival, rng) for _ in range(count)]


def test_own_prompts_of_all_domains_or_of_those_named() -> None:
    found = asked("own")
    assert {ask.topic for ask in found} == set(prompts.DOMAINS)
    assert all(8 <= ask.max_tokens <= 32 and not ask.exact for ask in found)
    assert len({ask.max_tokens for ask in found}) > 15
    assert {ask.topic for ask in asked("own:math,code")} == {"math", "code"}
    assert all(ask.prompt in prompts.load("math") for ask in asked("own:math"))


def test_no_prompt_repeats_before_all_were_asked() -> None:
    own = [prompt for texts in questions.unformed().values() for prompt in texts]
    found = asked("own", count=2 * len(own))
    first, second = found[: len(own)], found[len(own) :]
    for turn, each in enumerate((first, second)):
        assert Counter(ask.prompt for ask in each) == Counter(own)
        assert {ask.turn for ask in each} == {turn}
    assert [ask.prompt for ask in first] != [ask.prompt for ask in second]


def test_a_traces_length_wins() -> None:
    assert {ask.max_tokens for ask in asked("own", Arrival(0.0, 50, 17))} == {17}


def test_spec_bench(tmp_path: Path) -> None:
    path = tmp_path / "spec.jsonl"
    rows = [{"question_id": 81, "category": "writing", "turns": ["Compose.", "Again."]}, {"turns": []}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {(ask.prompt, ask.topic) for ask in asked(f"specbench:{path}")} == {("Compose.", "writing")}


def test_synthetic_lengths_are_exact_and_fit_the_context() -> None:
    [ask] = asked("synthetic:40,10", count=1)
    assert (len(ask.prompt), ask.max_tokens, ask.exact) == (40, 10, True)
    [ask] = asked("synthetic", Arrival(0.0, 60, 20), count=1)
    assert (len(ask.prompt), ask.max_tokens) == (60, 20)
    [ask] = asked("synthetic", Arrival(0.0, 10_000, 5_000), count=1)
    assert len(ask.prompt) + ask.max_tokens == LENGTHS.context - 1
    assert min(ask.prompt) >= asks.IDS.start  # type: ignore[type-var]
    assert max(ask.prompt) < asks.IDS.stop  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("own:poetry", "no domain 'poetry'; allowed: code"),
        ("specbench:/nowhere.jsonl", "cannot be read"),
        ("specbench", "allowed: own"),
        ("synthetic:1", "allowed: own"),
        ("synthetic:0,5", "allowed: own"),
        ("novel", "allowed: own"),
    ],
)
def test_what_is_no_source_is_named(source: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        asks.parse(source, LENGTHS, questions.unformed())


def test_a_file_without_prompts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("{}")
    with pytest.raises(SettingError, match="holds no prompt"):
        asks.parse(f"specbench:{path}", LENGTHS, {})
    path.write_text("[1]")
    with pytest.raises(SettingError, match="lines that are no objects"):
        asks.parse(f"specbench:{path}", LENGTHS, {})


def test_levels_are_chosen_by_weight() -> None:
    found = levels.parse(["fast:3:20:100", "slow:1:200:5000"])
    assert found[0] == levels.Level("fast", 3.0, 0.1, 0.02)
    rng = random.Random(1)
    counts = Counter(levels.choose(found, rng).name for _ in range(4000))
    assert counts["fast"] == pytest.approx(3000, rel=0.05)
    assert levels.parse([]) == levels.DEFAULT


def test_a_level_is_met_at_its_targets() -> None:
    level = levels.Level("fast", 1.0, 0.1, 0.02)
    assert level.meets_ttft(0.1)
    assert not level.meets_ttft(0.11)
    assert not level.meets_ttft(None)
    assert level.meets_tpot(0.02)
    assert not level.meets_tpot(0.021)
    assert level.meets_tpot(None)


def test_a_mix_asks_for_the_server_s_classes_with_prompts_of_their_own() -> None:
    given = options.command_line().parse_args(["--mix", "60/0/20", "--send-slo", "--shape", "poisson:1"])
    checked = options.plan(given, seconds=1.0, grace=0.0)
    copilot, summary = checked.levels
    assert (copilot.name, copilot.weight, copilot.settings) == ("copilot", 60.0, {"slo_class": "interactive"})
    assert summary.settings == {"slo_class": "batch"}
    ask = checked.sources["summary"].ask(Arrival(0.0), random.Random(1))
    assert (ask.topic, ask.max_tokens) == ("summarisation", 256)
    assert levels.Level("fast", 1.0, 0.1, 0.02).settings == {"slo_ttft_ms": 100.0, "slo_tpot_ms": 20.0}


def test_what_a_mix_is_to_meet_is_what_the_server_says() -> None:
    def says(at: float, slo_class: str, of: str, value: float) -> MetricsSnapshot:
        return MetricsSnapshot(at, (Sample("covey_slo_target_seconds", {"slo_class": slo_class, "of": of}, value),))

    chat, batch = levels.mix("0/1/1")
    looks = [says(0.0, "chat", "tpot", 0.05), says(1.0, "chat", "tpot", 0.06), MetricsSnapshot(2.0, ())]
    assert levels.as_served(chat, looks).tpot == 0.06
    assert levels.as_served(chat, looks).ttft == math.inf
    assert levels.as_served(batch, looks) == batch
    usual = levels.DEFAULT[0]
    assert levels.as_served(usual, looks) == usual


@pytest.mark.parametrize("words", [["--mix", "60/20"], ["--mix", "0/0/0"], ["--mix", "a/b/c"], ["--mix", "1.5/1/1"]])
def test_what_is_no_mix_is_named(words: list[str]) -> None:
    with pytest.raises(SettingError, match="mix: got"):
        options.plan(options.command_line().parse_args(words), seconds=1.0, grace=0.0)
    both = options.command_line().parse_args([*words, "--slo", "fast:1:2:3"])
    with pytest.raises(SettingError, match="one of the two"):
        options.plan(both, seconds=1.0, grace=0.0)


@pytest.mark.parametrize("text", ["fast", "fast:1:2", "fast:1:0:3", ":1:2:3", "fast:a:b:c"])
def test_what_is_no_level_is_named(text: str) -> None:
    with pytest.raises(SettingError, match="slo: got"):
        levels.parse([text])
    with pytest.raises(SettingError, match="once"):
        levels.parse(["fast:1:2:3", "fast:1:2:3"])


@pytest.mark.parametrize(
    ("words", "seconds", "grace"),
    [
        ([], math.nan, 1.0),
        ([], math.inf, 1.0),
        ([], 1.0, math.nan),
        (["--rate", "nan"], 1.0, 1.0),
        (["--request-timeout", "0"], 1.0, 1.0),
        (["--length-scale", "inf"], 1.0, 1.0),
        (["--context", "-1"], 1.0, 1.0),
    ],
)
def test_times_and_rates_are_numbers(words: list[str], seconds: float, grace: float) -> None:
    with pytest.raises(SettingError, match="above 0"):
        options.plan(options.command_line().parse_args(words), seconds=seconds, grace=grace)
