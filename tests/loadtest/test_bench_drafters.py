"""The bench `drafters`: its arithmetic, its prompts, and its emulated part at its smallest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from covey import prompts
from covey.planner.cost_table import Surface
from loadtest.bench import drafters_measured as measured
from loadtest.bench import drafters_prompts, drafters_real, drafters_rewards, drafters_servers
from loadtest.bench.__main__ import main
from loadtest.bench.drafters_published import GENERAL, LENGTH, PRINTED, SPECIALISTS, SPEEDUPS, rates, speedup
from loadtest.bench.drafters_serving import ORACLE, Case, Served, costs, play, requests
from loadtest.bench.work import Answer

SMALL = 10


def test_fitted_rates_give_the_printed_speedups() -> None:
    table = costs()
    verify, draft = Surface(table.verify), Surface(table.draft[GENERAL])
    for domain, by_drafter in rates(table, 1.0).items():
        for name, rate in by_drafter.items():
            tokens = sum(rate**at for at in range(LENGTH + 1))
            gained = tokens * verify(1, 1) / (verify(1, LENGTH + 1) + draft(1, LENGTH))
            assert gained == pytest.approx(speedup(domain, name), rel=1e-3)
    assert speedup("math", "draft_math") == pytest.approx(SPEEDUPS["math"][4])


def test_the_gap_moves_specialists_towards_the_general_drafter_and_away() -> None:
    closed, half, printed, wide = (rates(costs(), gap) for gap in (0.0, 0.5, 1.0, 1.25))
    for domain, specialist in SPECIALISTS.items():
        assert set(closed[domain].values()) == {closed[domain][GENERAL]}
        assert len({found[domain][GENERAL] for found in (closed, half, printed, wide)}) == 1
        mine = [found[domain][specialist] for found in (closed, half, printed, wide)]
        assert mine == sorted(mine)
        assert max(printed[domain], key=printed[domain].__getitem__) == specialist


def test_the_printed_choice_gains_a_third_over_the_general_drafter() -> None:
    gains = [PRINTED[domain]["ucb-bd"] / SPEEDUPS[domain][5] for domain in SPECIALISTS]
    assert measured.geometric_mean(gains) == pytest.approx(1.30, abs=0.01)


def test_keys_compare_within_repetitions_and_take_the_better_of_two() -> None:
    found = measured.keys(
        {
            "covey": [2.0, 4.0, 6.0],
            "general": [1.0, 2.0, 3.0],
            "ucb-be": [2.0, 5.0, 6.0],
            "ucb-bd": [1.0, 1.0, 9.0],
            "oracle": [2.0, 4.0, 8.0],
        }
    )
    assert found["covey_over_general"] == {"median": 2.0, "interval": [2.0, 2.0], "repetitions": 3}
    assert found["covey_over_ucb"]["median"] == 1.0
    low, high = found["covey_share_of_oracle"]["interval"]
    assert low <= found["covey_share_of_oracle"]["median"] == 1.0 <= high
    assert low == 0.75
    assert found["covey_over_hedge"] is None


def test_the_table_is_of_speedups_by_domain() -> None:
    speeds = {
        "off": [{"code": 10.0, "math": 10.0}, {"code": 20.0, "math": 10.0}],
        "covey": [{"code": 20.0, "math": 80.0}, {"code": 40.0, "math": 80.0}],
    }
    assert measured.by_domain(speeds) == {"covey": {"code": 2.0, "math": 8.0, "mean": pytest.approx(4.0)}}


def test_one_callers_figure_is_a_mean_over_domains_and_a_batchs_what_all_get() -> None:
    served = Served(1, {"code": 100, "math": 100}, {"code": 1.0, "math": 4.0}, time=8.0, rounds=50, emitted=150)
    assert served.rate == pytest.approx(50.0)
    assert replace(served, callers=16).rate == 25.0
    assert served.tokens_per_round == 3.0


def test_requests_are_the_same_for_all_and_tenants_are_no_domains() -> None:
    asked = requests(200, 1, telling=True)
    assert asked == requests(200, 1, telling=True)
    assert {each.domain for each in asked} == set(SPECIALISTS)
    for tenant in {each.tenant for each in asked}:
        assert len({each.domain for each in asked if each.tenant == tenant}) == len(SPECIALISTS)
    first = {each.domain: each.prompt[0] for each in asked}
    assert all(each.prompt[0] == first[each.domain] for each in asked)
    words = {each.domain: set(each.prompt[1:]) for each in asked}
    untold = {each.domain: set(each.prompt[1:]) for each in requests(200, 1, telling=False)}
    assert len(untold["code"] & untold["math"]) > 2 * len(words["code"] & words["math"]) > 0


def test_the_oracle_gains_what_the_fit_says_and_policies_come_between() -> None:
    served = {
        policy: play(policy, Case(), SMALL, 1) for policy in ("off", f"fixed:{GENERAL}", "ucb-be", "covey", ORACLE)
    }
    assert len({sum(each.tokens.values()) for each in served.values()}) == 1
    assert served["off"].rounds == 0
    assert served[ORACLE].speeds["math"] / served["off"].speeds["math"] == pytest.approx(2.454, rel=0.15)
    assert served[f"fixed:{GENERAL}"].rate < served["covey"].rate < 1.02 * served[ORACLE].rate
    assert all(share == served[ORACLE].asked[at] for at, share in enumerate(served[ORACLE].best))
    assert served["covey"].best != served["covey"].asked


def test_ten_weak_drafters_more_cost_next_to_nothing() -> None:
    """Nobody tries each of them once: that is what costs a bandit most of what it gains."""
    few, many = (play("covey", Case(weak=weak), SMALL, 1) for weak in (0, 10))
    assert many.tokens == few.tokens
    assert many.rate > 0.9 * few.rate
    bandit = play("ucb-bd", Case(weak=10), SMALL, 1)
    assert many.rate > 1.1 * bandit.rate


def test_block_divergence_reaches_the_policy_that_learns_from_it() -> None:
    case = Case(one_device=False)
    late = {name: play(name, case, SMALL, 2) for name in ("ucb-bd", "random")}
    shares = {name: sum(each.best[30:]) / sum(each.asked[30:]) for name, each in late.items()}
    assert shares["ucb-bd"] > 0.5 > 0.35 > shares["random"]


def test_a_device_for_all_drafters_makes_batches_slower() -> None:
    shared, own = (play("random", Case(callers=8, one_device=each), 2 * SMALL, 1) for each in (True, False))
    assert shared.rate < own.rate
    assert shared.tokens == own.tokens


def test_a_quick_emulated_run_has_the_keys_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "drafters.json"
    assert main(["drafters", "--part", "emulated", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["emulated_pair"]
    assert found["emulated"] is True
    alone = found["parts"]["c1"]
    assert alone["covey_over_general"]["median"] > 1.0
    assert alone["covey_over_hedge"] is None
    assert set(alone["speedups"]["covey"]) == {*SPECIALISTS, "mean"}
    assert alone["best_arm_ratio"]["oracle"] == [1.0] * len(alone["best_arm_ratio"]["covey"])
    assert (tmp_path / "drafters-emulated.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_part_is_named_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drafters", "--part", "unreal", "--json", str(tmp_path / "out.json")]) == 1
    assert "emulated" in capsys.readouterr().err


def test_changed_prompts_keep_what_they_should() -> None:
    assert sorted(drafters_prompts.PARTNER) == sorted(drafters_prompts.PARTNER.values()) == sorted(prompts.DOMAINS)
    text = prompts.load("summarisation")[0]
    mixed = drafters_prompts.shuffled("summarisation", text, 1)
    assert mixed != text
    assert sorted(mixed.split()) == sorted(text.split())
    assert mixed.endswith("\nSummary:")
    assert drafters_prompts.long("math", prompts.load("math")[0], 1).endswith(prompts.load("math")[0])
    assert len(drafters_prompts.long("math", prompts.load("math")[0], 1)) >= 2000
    assert drafters_prompts.switching("code", "x = 1", 1).startswith("x = 1\n\nUser:")


def test_every_case_asks_every_system_it_names_and_prompts_differ_between_repetitions() -> None:
    for size in ("quick", "usual", "full"):
        for case in drafters_real.cases(size).values():
            assert set(case.systems) <= set(drafters_servers.ALL)
    case = drafters_real.cases("usual")["mixed16"]
    asked = [drafters_real.asks(case, repetition, 12, 64, 1) for repetition in range(2)]
    assert all(len(each) == 16 for each in asked)
    assert not {ask.text for ask in asked[0]} & {ask.text for ask in asked[1]}
    oracle = drafters_servers.ALL["oracle"]
    assert {oracle.ask(ask).drafter for ask in asked[0]} == set(drafters_servers.SPECIALISTS.values())


def test_the_real_parts_keys_come_of_whole_repetitions() -> None:
    found = drafters_real.Measured()
    for repetition in range(2):
        for name, seconds in (("off", 2.0), ("covey", 1.0)):
            answer = Answer(tuple(range(60)), seconds, accepted=0 if name == "off" else 30)
            found.answers["c1"][name][repetition] += [("code", answer), ("math", answer)]
    found.answers["c1"]["off"][2].append(("code", Answer((1,), 1.0)))  # the time was up
    part = found.summary()["c1"]
    assert part["speedups"]["covey"] == {"code": 2.0, "math": 2.0, "mean": pytest.approx(2.0)}
    assert part["tokens_per_round"] == {"off": 1.0, "covey": 2.0}
    assert part["tokens_per_second"]["covey"]["repetitions"] == 2


def test_statistics_of_rewards_are_over_all_rounds_and_by_round() -> None:
    found = drafters_rewards.statistics([[0.0, 1.0, 0.5], [0.5]])
    assert found is not None
    assert (found["mean"], found["variance"], found["zero_ratio"], found["rounds"]) == (0.5, 0.125, 0.25, 4)
    assert found["by_round"] == [0.25, 1.0, 0.5]
    assert drafters_rewards.statistics([[]]) is None
