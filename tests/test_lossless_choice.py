"""The bundled models with drafters chosen request by request and moved between rounds: no text depends on which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from covey.contracts.profile import SpeculationSettings
from covey.planner.build import build
from tests.bundled import SAMPLINGS, plainly, serve, target, texts
from tests.fakes import request

NAMES, LENGTH, COUNT = ("draft_general", "draft_code", "draft_suffix"), 32, 6
POLICIES = ("ucb-bd:0.1", "random")


@pytest.mark.timeout(600)
def test_no_text_depends_on_who_drafts() -> None:
    asked = [
        (
            texts()[number * 23],
            replace(list(SAMPLINGS.values())[number % 3], seed=number, end_ids=target().info().end_ids),
        )
        for number in range(COUNT)
    ]
    plain = plainly(asked, LENGTH)
    for policy in POLICIES:
        settings = SpeculationSettings(policy="fixed:4", drafter_policy=policy, max_depth=4, drafters=NAMES)
        planner = build(settings, NAMES, max_rows=8)
        wanted = [request(key, prompt, LENGTH, sampling=sampling) for key, (prompt, sampling) in enumerate(asked)]
        sink, records = serve(planner, wanted, NAMES, COUNT)
        assert [sink.tokens[key] for key in range(COUNT)] == plain, policy
        assert len({name for record in records for name in record.plan.drafter if name}) > 1, policy
