"""The bench `emulated` at its smallest, and what it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from covey_client.costs.surface import Surface
from loadtest.bench.__main__ import main
from loadtest.bench.emulated_pairs import OUTPUT, PAIRS, PROMPT, requests
from loadtest.bench.emulated_serving import Served, play

SMALL = 6
DRAFTER = PAIRS[0].drafters[0]


def served(policy: str, pair: int = 0, count: int = SMALL, gap: float = 0.05) -> Served:
    times = tuple(gap * index for index in range(count))
    return play(PAIRS[pair], policy, times, requests(PAIRS[pair], count, 1), 1)


def test_a_quick_run_has_the_keys_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "emulated.json"
    assert main(["emulated", "--quick", "--pair", "emulated-7b", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["emulated"], found["clock"]) == (True, "virtual")
    pair = found["pairs"]["emulated-7b"]
    assert set(pair["adaptive_over"]) == {"off", "fixed:3", "nightjar"}
    assert set(pair["loads"]) == {"15", "two_peaks"}
    assert pair["adaptive_over_best_static"]["least"] > 0
    assert pair["latency_over_covey"]["off"]["mean"] > 0


def test_an_unknown_pair_is_named_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulated", "--pair", "1t", "--json", str(tmp_path / "out.json")]) == 1
    assert "emulated-7b" in capsys.readouterr().err


@pytest.mark.parametrize("pair", range(len(PAIRS)))
def test_every_pair_serves_every_token_and_gains_by_drafting_at_low_load(pair: int) -> None:
    plain, drafting = served("off", pair), served("fixed:2", pair)
    wanted = sum(length.output for length in requests(PAIRS[pair], SMALL, 1))
    assert plain.tokens == drafting.tokens == wanted
    assert (plain.depth, drafting.depth > 1.5) == (0.0, True)
    assert drafting.throughput > 1.1 * plain.throughput
    assert all(0 < latency <= plain.seconds for latency in plain.latencies)


def test_runs_are_reproducible() -> None:
    assert served("adaptive") == served("adaptive")


def test_a_new_request_is_read_at_its_own_price_not_that_of_the_whole_batch() -> None:
    together, alone = served("fixed:1", gap=0.0), served("fixed:1", gap=5.0)
    assert together.tokens == alone.tokens
    table = Surface(PAIRS[0].table.switch[DRAFTER])
    assert table(PROMPT, 1) < 0.5 * table(PROMPT, 32)


def test_capacity_is_what_plain_decoding_serves() -> None:
    assert PAIRS[0].capacity() * OUTPUT == pytest.approx(4000, rel=0.5)


def test_requests_are_as_long_as_their_dataset_s() -> None:
    found = requests(PAIRS[0], 4000, 1)
    assert fmean(each.output for each in found) == pytest.approx(OUTPUT, rel=0.1)
    assert fmean(each.prompt for each in found) == pytest.approx(PROMPT, rel=0.2), "the longest are cut"
