"""What all policies over drafters keep to, and what each makes of a request in which one drafter is best."""

from __future__ import annotations

import numpy as np
import pytest

from covey.bandits.drafters import policies
from covey.contracts import registry
from covey.contracts.errors import SettingError
from tests.bandits.synthetic import always, make, play, setting

ALL = tuple(registry.DRAFTER_POLICIES)
DRAW = ("random", "exp3")
BEST, APART = 2, (0.45, 0.45, 0.75, 0.45, 0.45)
SEEDS = 8
# The least mean share of the best arm in rounds 40 to 100 of such a request. A fifth is chance.
FOUND = {
    "ucb-bd": 0.99, "ucb-bd:0.1": 0.97, "ucb-bd-theorem": 0.65, "ucb-be:0.1": 0.8, "exp3": 0.3, "sh": 0.99,
    "petc": 0.99, "d-ucb": 0.75, "sw-ucb": 0.84,
}  # fmt: skip


@pytest.mark.parametrize(("name", "least"), FOUND.items())
def test_the_best_arm_is_found(name: str, least: float) -> None:
    shares = [play(make(name, seed), always(*APART), rounds=100, seed=seed).share(BEST, 40) for seed in range(SEEDS)]
    assert np.mean(shares) >= least


@pytest.mark.parametrize("name", ALL)
def test_only_arms_that_serve_are_chosen_and_their_return_finds_the_statistics_right(name: str) -> None:
    """`play` asserts that what is chosen was allowed. The best arm is away for a while, then all but two are."""

    def allowed(count: int) -> list[int]:
        return [0, 1, 3, 4] if 30 <= count < 60 else [4, 2] if count >= 90 else list(range(5))

    played = [play(make(name, seed), always(*APART), rounds=150, seed=seed, allowed=allowed) for seed in range(SEEDS)]
    back = np.mean([each.share(BEST, 65, 90) for each in played])
    two = np.mean([each.share(BEST, 100) for each in played])
    learns = name in FOUND
    assert back >= (0.7 * FOUND[name] if learns else 0.0)
    assert two >= (max(0.55, 0.95 * FOUND[name]) if learns else 0.0)


@pytest.mark.parametrize("name", ALL)
def test_a_seed_says_all(name: str) -> None:
    first, again, other = (play(make(name, seed), always(*APART), rounds=60).arms for seed in (1, 1, 2))
    assert first == again
    assert (first != other) == (name in DRAW)


@pytest.mark.parametrize("name", [name for name in ALL if policies.find(name).reward])
def test_rounds_that_somebody_else_chose_teach_too(name: str) -> None:
    bandit = make(name, arms=3)
    for arm in [0, 1, 2] * 400:
        bandit.update(arm, (0.2, 0.3, 0.9)[arm], 3)
    assert [bandit.choose(range(3)) for _ in range(30)].count(2) >= 18


def test_random_is_even_and_fixed_has_a_name() -> None:
    counts = np.bincount(play(make("random"), always(*APART), rounds=1000).arms)
    assert counts.min() > 150
    assert make("fixed").choose([1, 3]) == 1
    named = make("fixed:translate")
    assert (named.choose([1, 3]), named.choose([1, 2])) == (3, 1)


def test_names_carry_parameters() -> None:
    found = policies.find("d-ucb:0.2,0.9")
    assert (found.own, found.reward) == ({"beta": 0.2, "gamma": 0.9}, "divergence")
    assert policies.find("ucb-be").own == {}
    rewards = {name: policies.find(name).reward for name in ALL}
    assert {name for name, reward in rewards.items() if not reward} == {"fixed", "random"}
    assert {name for name, reward in rewards.items() if reward == "efficiency"} == {"ucb-be"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ucb", "got 'ucb', allowed: fixed, random, ucb-bd,"),
        ("ucb-bd:much", "beta is no float: 'much'"),
        ("sw-ucb:0.1,2.5", "window is no int: '2.5'"),
        ("exp3:0.1,0.2", "exp3 has 1 parameters: gamma"),
        ("random:1", "random has 0 parameters"),
        ("ucb-bd:-1", "got beta -1.0, allowed: 0 or more"),
        ("ucb-bd:nan", "got beta nan, allowed: 0 or more"),
        ("exp3:0", "got gamma 0.0, allowed: above 0, at most 1"),
        ("d-ucb:0.1,1.5", "got gamma 1.5"),
        ("sw-ucb:0.1,4", "got window 4, allowed: 5 or more"),
        ("sh:0", "got period 0, allowed: 1 or more"),
        ("petc:-1", "got c -1.0"),
        ("fixed:poetry", "got fixed:poetry, the drafters are general, code"),
    ],
)
def test_what_cannot_be_is_said(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message.replace(".", r"\.")):
        policies.find(text).make(setting(0))
