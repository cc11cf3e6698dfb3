"""Servers that differ in a setting, asked in turns."""

from __future__ import annotations

from itertools import islice

from loadtest.alternate import asks, changed, shown, tomllib


def test_settings_change_a_profile_and_the_environment() -> None:
    profile = {"models": ["target"], "target": {"threads": 1, "dtype": "auto"}, "speculation": {"drafters": []}}
    text, variables = changed(profile, "target.threads=2,speculation.policy='off',target.run_ahead=false,GOMP_X=3")
    assert tomllib.loads(text) == {
        "models": ["target"],
        "target": {"threads": 2, "dtype": "auto", "run_ahead": False},
        "speculation": {"drafters": [], "policy": "off"},
    }
    assert variables == {"GOMP_X": "3"}
    assert profile["target"] == {"threads": 1, "dtype": "auto"}
    assert tomllib.loads(changed(profile, "")[0]) == profile


def test_servers_are_asked_the_same_and_no_tenant_is_asked_a_prompt_twice() -> None:
    texts = ["a", "b", "c"]
    asked = [
        (turn, caller, *each) for turn in (0, 1) for caller in (0, 1) for each in islice(asks(texts, turn, caller), 7)
    ]
    assert len({(text, more["tenant"]) for _, _, text, more in asked}) == len(asked)
    assert list(islice(asks(texts, 1, 0), 7)) == [
        tuple(rest) for turn, caller, *rest in asked if (turn, caller) == (1, 0)
    ]


def test_ratios_are_of_what_was_asked_within_a_turn() -> None:
    columns = [list(column.cells) for column in shown({"": [100.0, 50.0, 80.0], "a=1": [150.0, 75.0, 40.0]}).columns]
    assert columns[1] == ["80", "75"]
    assert columns[2] == ["1.00", "1.50"], "though the host became half as fast"
    assert columns[3] == ["1.00 to 1.00", "0.50 to 1.50"]
