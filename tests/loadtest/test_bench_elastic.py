"""The bench of memory that breathes: its keys, and that what is emulated is what it says."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from covey.contracts import profile
from covey.contracts.profile import MemorySettings
from covey_client.costs.surface import Surface
from loadtest.bench import elastic, elastic_bundled
from loadtest.bench.elastic_bundled import Peaks
from loadtest.bench.emulated_pairs import PAIRS, RequestLengths, requests
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.session import QUICK, USUAL

SEVEN = next(pair for pair in PAIRS if pair.name == elastic.FIVE)


def served(tokens: int) -> Served:
    report = {"operations": {"unload done": 2, "load done": 1}, "most_gained": 40}
    return Served(tokens, 0, 10.0, (1.0, 2.0), 0.5, 3, report)


def made_up() -> elastic.ElasticRuns:
    """Thresholds bring a tenth more, on the real server a half."""
    measured = elastic.ElasticRuns()
    for case in elastic.cases(USUAL):
        for policy, tokens in ((elastic.OFF, 1000), (elastic.THRESHOLDS, 1100)):
            measured.emulated[case.name][policy].append(elastic.ElasticRun(tokens / 10, served(tokens), 1.06))
    for arm, tokens in ((elastic.OFF, 1000), (elastic.THRESHOLDS, 1500), (elastic.ON_WEIGHTS, 1200)):
        pauses = {"expand": [0.001, 0.002], "contract": [0.003], "reload_dispatch": [0.00001]}
        measured.bundled[arm].append(Peaks(tokens, 10.0, (1.0,), 0, 9, {"load done": 1}, pauses))
    return measured


def test_it_has_the_keys_it_promises() -> None:
    found = made_up().summary()
    gains = {"emulated": pytest.approx(1.1), "bundled": 1.5, "bundled_weights_and_kv": 1.2}
    assert found["throughput_on_over_off"] == gains
    assert found["pause_ms_p99"] == pytest.approx({"expand": 2.0, "contract": 3.0, "reload_dispatch": 0.01}, rel=0.02)
    assert {case["closed_form"] for case in found["emulated_cases"].values()} == {1.06}
    assert found["emulated_cases"].keys() == {case.name for case in elastic.cases(USUAL)}


def test_what_was_not_measured_is_null() -> None:
    found = elastic.ElasticRuns().summary()
    assert not any(found["throughput_on_over_off"].values())
    assert not found["pause_ms_p99"]


def test_only_how_often_drafts_are_right_is_another_one() -> None:
    named = {case.name: case.pair for case in elastic.cases(USUAL)}
    seldom, usual = named[elastic.KEY_CASE], named["emulated-7b-five, as it is"]
    rates = {rate for by_tenant in seldom.rates.values() for listed in by_tenant.values() for rate in listed}
    assert rates == {elastic.SELDOM}
    assert rates.isdisjoint(rate for by in usual.rates.values() for listed in by.values() for rate in listed)
    assert [case.name for case in elastic.cases(QUICK)] == [elastic.KEY_CASE]


def test_the_closed_form_is_that_of_rows_and_their_time() -> None:
    """Requests that run, drawn one by one: each is met as often as it is long, at any of its tokens."""
    case = next(elastic.cases(QUICK))
    asked, rng = requests(case.pair, 100_000, 5), random.Random(5)
    running = rng.choices(asked, [each.output for each in asked], k=100_000)
    held = sum(16 * math.ceil((each.prompt + rng.uniform(0, each.output)) / 16) for each in running) / len(running)
    verify = Surface(case.pair.table.verify)
    output, prompt = (sum(getattr(each, what) for each in asked) / len(asked) for what in ("output", "prompt"))

    def seconds(blocks: int) -> float:
        rows = blocks * 16 / held
        share = rows % 1
        passes = (1 - share) * verify(int(rows), int(rows)) + share * verify(int(rows) + 1, int(rows) + 1)
        return output * passes / rows + prompt * verify(1, 2048) / 2048

    assert elastic.serves(case.pair) == pytest.approx(output / seconds(860), rel=0.02)
    assert case.closed_form() - 1 == pytest.approx(seconds(860) / seconds(960) - 1, rel=0.02)


def test_profiles_of_servers_are_what_their_arms_say(tmp_path: Path) -> None:
    for arm in elastic.ARMS:
        (tmp_path / "elastic.toml").write_text(elastic_bundled.PROFILE.format(arm=arm))
        found = profile.load(str(tmp_path / "elastic.toml"))
        assert (found.memory.policy, found.memory.counted) == (arm.policy, arm.counted)


def test_throughput_is_that_of_the_peaks() -> None:
    """While more comes than is served, by the shape's own rate."""
    case = next(elastic.cases(QUICK))
    capacity, seconds = case.pair.capacity(), 100 / case.pair.capacity()

    def rate(at: float) -> float:
        return capacity * (elastic.LOW + (elastic.HIGH - elastic.LOW) * math.sin(2 * math.pi * at / seconds) ** 4)

    steps = [seconds * (step + 0.5) / 20000 for step in range(20000)]
    tokens = [(at, 3 if rate(at) > capacity else 1000000) for at in steps]
    found = case.throughput(replace(served(1), emitted=tuple(tokens)), 100)
    assert found == pytest.approx(3 * 20000 / seconds, rel=0.01)
    assert replace(case, rate=5.0).throughput(served(50), 100) == 5.0


def test_plain_decoding_of_a_crowd_gains_the_drafters_blocks_in_virtual_time() -> None:
    """Fifty long requests at once; without drafts the drafters are of no use."""
    asked = [RequestLengths(200, 400, "code")] * 50
    settings = MemorySettings(policy=elastic.THRESHOLDS)
    off, on = (play(SEVEN, "off", (0.0,) * 50, asked, 1, elastic=each) for each in (MemorySettings(), settings))
    assert on.tokens == off.tokens == 50 * 400
    assert on.memory["most_gained"] == 50
    assert off.memory["most_gained"] == 0
    assert on.throughput > off.throughput
