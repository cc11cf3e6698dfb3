"""The bench `drafters`: its arithmetic, and who is asked what."""

from __future__ import annotations

import pytest

from loadtest.bench import drafters, drafters_servers
from loadtest.bench.work import Answer
from loadtest.bench.workload import SPECIALISTS


def test_keys_compare_within_repetitions_and_take_the_better_of_two() -> None:
    found = drafters.keys(
        {
            "covey": [2.0, 4.0, 6.0],
            "general": [1.0, 2.0, 3.0],
            "ucb-be": [2.0, 5.0, 6.0],
            "ucb-bd": [1.0, 1.0, 9.0],
            "oracle": [2.0, 4.0, 8.0],
        }
    )
    assert found["covey_over_general"] == {"median": 2.0, "interval": (2.0, 2.0), "repetitions": 3}
    assert found["covey_over_ucb"]["median"] == 1.0
    low, high = found["covey_share_of_oracle"]["interval"]
    assert low <= found["covey_share_of_oracle"]["median"] == 1.0 <= high
    assert low == 0.75
    assert found["covey_over_random"] is None


def test_the_table_is_of_speedups_by_domain() -> None:
    speeds = {
        "off": [{"code": 10.0, "math": 10.0}, {"code": 20.0, "math": 10.0}],
        "covey": [{"code": 20.0, "math": 80.0}, {"code": 40.0, "math": 80.0}],
    }
    assert drafters.by_domain(speeds) == {"covey": {"code": 2.0, "math": 8.0, "mean": pytest.approx(4.0)}}


def test_every_case_asks_every_system_it_names_and_prompts_differ_between_repetitions() -> None:
    for size in ("quick", "usual", "full"):
        assert set(drafters.systems_of(size)) <= set(drafters_servers.ALL)
    asked = [drafters.asks(16, repetition, 12, 64, 1) for repetition in range(2)]
    assert all(len(each) == 16 for each in asked)
    assert not {ask.text for ask in asked[0]} & {ask.text for ask in asked[1]}
    oracle = drafters_servers.ALL[drafters_servers.ORACLE]
    assert {oracle.ask(ask).drafter for ask in asked[0]} == set(SPECIALISTS.values())


def test_the_real_parts_keys_come_of_whole_repetitions() -> None:
    found = drafters.DrafterRuns()
    for repetition in range(2):
        for name, seconds in (("off", 2.0), ("covey", 1.0)):
            answer = Answer(tuple(range(60)), seconds, accepted=0 if name == "off" else 30)
            found.answers["c1"][name][repetition] += [("code", answer), ("math", answer)]
    found.answers["c1"]["off"][2].append(("code", Answer((1,), 1.0)))  # the time was up
    part = found.summary()["c1"]
    assert part["speedups"]["covey"] == {"code": 2.0, "math": 2.0, "mean": pytest.approx(2.0)}
    assert part["tokens_per_round"] == {"off": 1.0, "covey": 2.0}
    assert part["tokens_per_second"]["covey"]["repetitions"] == 2
