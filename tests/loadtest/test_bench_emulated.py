"""The benches `emulated` and `planner` at their smallest, and what they are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.bandits.length import Situation
from covey.planner.cost_table import Surface
from loadtest.bench import planner
from loadtest.bench.__main__ import main
from loadtest.bench.emulated_oracle import ORACLE, Oracle
from loadtest.bench.emulated_pairs import OUTPUT, PAIRS, PROMPT, requests
from loadtest.bench.emulated_serving import Served, play

SMALL = 6
DRAFTER = PAIRS[0].drafters[0]


def served(policy: str, pair: int = 0, count: int = SMALL, gap: float = 0.05) -> Served:
    times = tuple(gap * index for index in range(count))
    return play(PAIRS[pair], policy, times, requests(PAIRS[pair], count, 1), 1)


def test_a_quick_run_has_the_keys_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVEY_DATA", raising=False)
    out = tmp_path / "emulated.json"
    assert main(["emulated", "--quick", "--pair", "emulated-7b", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["emulated"], found["clock"]) == (True, "virtual")
    pair = found["pairs"]["emulated-7b"]
    assert set(pair["covey_over"]) == {"off", "fixed:3", "nightjar", ORACLE}
    assert pair["best_fixed"]["15"].keys() == {"throughput", "latency"}
    assert pair["two_peaks"]["throughput_covey_over_best_static"] > 0
    assert pair["two_peaks"]["latency_best_static_over_covey"] > 0
    assert pair["azure"] is None
    assert pair["nightjar_printed"]["off"]["throughput"]["ShareGPT"] == 3653.61
    assert (tmp_path / "emulated-7b.png").read_bytes().startswith(b"\x89PNG")


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
    assert served("covey") == served("covey")


def test_a_new_request_is_read_at_its_own_price_not_that_of_the_whole_batch() -> None:
    together, alone = served("fixed:1", gap=0.0), served("fixed:1", gap=5.0)
    assert together.tokens == alone.tokens
    table = Surface(PAIRS[0].table.switch[DRAFTER])
    assert table(PROMPT, 1) < 0.5 * table(PROMPT, 32)


def test_the_oracle_drafts_where_it_pays_and_only_there() -> None:
    pair = PAIRS[0]
    oracle = Oracle(pair, 5)

    def depth(rows: int, prefill: int = 0) -> int:
        return oracle.choose(Situation(rows, 5, 0, 9, ((DRAFTER, rows),), prefill))

    assert depth(4) >= 2
    assert depth(200) == 0
    assert depth(4, 1500) <= depth(4)
    assert [depth(rows) for rows in (1, 32, 64, 128, 200)] == sorted(
        (depth(rows) for rows in (1, 32, 64, 128, 200)), reverse=True
    )


def test_capacity_is_what_plain_decoding_serves() -> None:
    assert PAIRS[0].capacity() * OUTPUT == pytest.approx(4000, rel=0.5)  # tokens a second; Nightjar printed 3654


def test_the_planner_bench_times_choices_and_rounds(tmp_path: Path) -> None:
    out = tmp_path / "planner.json"
    assert main(["planner", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["gamma_us"] > 0
    assert found["round_overhead_ms"] > 0
    assert set(found["gamma_us_by_policy"]) == set(planner.POLICIES)
    assert found["rows"] == 32
