"""Servers that differ in a setting, asked in turns."""

from __future__ import annotations

from loadtest.alternate import changed, shown, tomllib


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


def test_ratios_are_of_what_was_asked_within_a_turn() -> None:
    columns = [list(column.cells) for column in shown({"": [100.0, 50.0, 80.0], "a=1": [150.0, 75.0, 40.0]}).columns]
    assert columns[1] == ["80", "75"]
    assert columns[2] == ["1.00", "1.50"], "though the host became half as fast"
    assert columns[3] == ["1.00 to 1.00", "0.50 to 1.50"]
