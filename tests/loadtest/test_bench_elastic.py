"""The bench of memory that breathes: its keys, and that what is emulated is what it says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from covey.contracts.profile import MemorySettings
from loadtest.bench import elastic
from loadtest.bench.emulated_pairs import PAIRS, RequestLengths
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.session import QUICK, USUAL

SEVEN = next(pair for pair in PAIRS if pair.name == elastic.FIVE)


def served(tokens: int) -> Served:
    report = {"operations": {"unload done": 2, "load done": 1}, "most_gained": 40}
    return Served(tokens, 0, 10.0, (1.0, 2.0), 0.5, 3, report)


def test_it_has_the_keys_it_promises() -> None:
    measured = elastic.ElasticRuns()
    assert measured.summary() == {"throughput_on_over_off": None, "cases": {}}
    for case in elastic.cases(USUAL):
        for policy, tokens in ((elastic.OFF, 1000), (elastic.THRESHOLDS, 1100)):
            measured.runs[case.name][policy].append(elastic.ElasticRun(tokens / 10, served(tokens)))
    found = measured.summary()
    assert found["throughput_on_over_off"] == pytest.approx(1.1)
    assert found["cases"].keys() == {case.name for case in elastic.cases(USUAL)}


def test_only_how_often_drafts_are_right_is_another_one() -> None:
    named = {case.name: case.pair for case in elastic.cases(USUAL)}
    seldom, usual = named[elastic.KEY_CASE], named["emulated-7b-five, as it is"]
    rates = {rate for by_tenant in seldom.rates.values() for listed in by_tenant.values() for rate in listed}
    assert rates == {elastic.SELDOM}
    assert rates.isdisjoint(rate for by in usual.rates.values() for listed in by.values() for rate in listed)
    assert [case.name for case in elastic.cases(QUICK)] == [elastic.KEY_CASE]


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


def test_plain_decoding_of_a_crowd_gains_the_drafters_blocks_in_virtual_time() -> None:
    """Fifty long requests at once; without drafts the drafters are of no use."""
    asked = [RequestLengths(200, 400, "code")] * 50
    settings = MemorySettings(policy=elastic.THRESHOLDS)
    off, on = (play(SEVEN, "off", (0.0,) * 50, asked, 1, elastic=each) for each in (MemorySettings(), settings))
    assert on.tokens == off.tokens == 50 * 400
    assert on.memory["most_gained"] == 50
    assert off.memory["most_gained"] == 0
    assert on.throughput > off.throughput
