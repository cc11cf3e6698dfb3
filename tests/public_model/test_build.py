"""What is built of a profile around an engine, and what is told of its rounds and requests."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.types import NO_FLOATS, NO_INTS, Finish, Open, Progress, Sampling
from covey.drafters.companion import LookedUp
from covey.drafters.ngram import NgramLookup
from covey.drafters.suffix import SuffixLookup
from covey.process import traces
from covey.public_model.build import Builder, named_costs
from covey.public_model.spans import emit
from covey.text.streaming import Served
from tests.collector import collecting
from tests.public_model.worlds import Made


def test_costs_that_cannot_be_read_are_found_before_anything_is_started(made: Made) -> None:
    chosen = made().profile
    assert named_costs(chosen) is None
    with pytest.raises(SettingError):
        named_costs(replace(chosen, speculation=replace(chosen.speculation, costs="nowhere/costs.json")))


def test_rounds_are_counted_and_reported(made: Made) -> None:
    world = made().begin()
    assert world.answered().chunks[-1].num_output == 3
    world.close()  # its last round has been told
    told = world.answered({"inspect": np.array([b"rounds:0"], np.object_)}).reports[0]
    rounds = json.loads(told)["rounds"]
    assert sum(each["emitted"] for each in rounds) == 3
    assert world.metrics.round.call_count == len(rounds)
    assert world.metrics.served.call_count == 1


@pytest.mark.parametrize(
    ("settings", "lookup"),
    [
        ({}, SuffixLookup),
        ({"speculation": {"lookup": "ngram"}}, NgramLookup),
        ({"speculation": {"lookup": "off"}}, None),
        ({"speculation": {"policy": "nightjar"}}, None),
        ({"speculation": {"selection": "worth"}}, None),
        ({"target": {"kind": "emulated"}}, None),
    ],
)
def test_policy_covey_has_the_lookup_that_the_profile_names(settings: dict[str, Any], lookup: type | None) -> None:
    none: Any = None
    chosen = profile.of_tables(settings, "any", "any.toml")
    found = Builder("covey", chosen, none, none, none, none, none, "", "", None)._companion()
    if lookup is None:
        assert found is None
    else:
        assert found is not None
        text = found(Open(1, np.array([1, 2], np.int32), 2, Sampling()))
        assert isinstance(text, LookedUp)
        assert isinstance(text.lookup, lookup)


@pytest.mark.parametrize(
    ("queued", "first", "phases"),
    [(None, None, ["queue"]), (0.5, None, ["queue", "prefill"]), (0.5, 0.75, ["queue", "prefill", "decode"])],
)
def test_a_trace_has_the_phases_that_a_request_reached(
    monkeypatch: pytest.MonkeyPatch, queued: float | None, first: float | None, phases: list[str]
) -> None:
    trace = secrets.token_hex(16)
    last = Progress(1, NO_INTS, NO_FLOATS, Finish.ERROR, queued=queued)
    served = Served(Finish.ERROR, last, 5, 1, first, None, 1.0, name="r", trace=f"00-{trace}-{'1' * 16}-01")
    with collecting() as collector:
        for name, value in {**collector.environment, "OTEL_SERVICE_NAME": "my team"}.items():
            monkeypatch.setenv(name, value)
        made = traces.opened()
        assert made is not None
        emit(made, served)
        made.close()
        spans = collector.of(trace, 1 + len(phases))
    request = spans.pop("generate")
    assert request.failed
    assert (request.service, request.end - request.start) == ("my team", 1_000_000_000)
    assert request.attributes["gen_ai.response.finish_reasons"] == ["error"]
    ordered = sorted(spans.values(), key=lambda span: span.start)
    assert [span.name for span in ordered] == phases
    assert {span.parent for span in ordered} == {request.id}
