"""What is built of a profile around an engine."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.errors import SettingError
from covey.public_model.build import named_costs
from tests.public_model.worlds import Made


def test_costs_that_cannot_be_read_are_found_before_anything_is_started(made: Made) -> None:
    profile = made().profile
    assert named_costs(profile) is None
    with pytest.raises(SettingError):
        named_costs(replace(profile, speculation=replace(profile.speculation, costs="nowhere/costs.json")))


def test_rounds_are_counted_and_reported(made: Made) -> None:
    world = made()
    world.begin()
    assert world.answered().chunks[-1].num_output == 3
    world.close()  # its last round has been told
    told = world.answered({"inspect": np.array([b"rounds:0"], np.object_)}).reports[0]
    rounds = json.loads(told)["rounds"]
    assert sum(each["emitted"] for each in rounds) == 3
    assert world.metrics.round.call_count == len(rounds)
    assert world.metrics.served.call_count == 1
