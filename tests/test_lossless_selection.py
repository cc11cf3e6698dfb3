"""The bundled models with drafters chosen request by request, and single drafts chosen: no text depends on which, for
any policy, width, selector, objective or rule that is exact by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import Ints, Objective, Sampling
from covey.planner.build import build
from covey_client.costs.table import CostTable
from tests.bundled import MAX_WIDTH, SAMPLINGS, Outputs, plainly, serve, target, texts
from tests.fakes import request

NAME, LENGTH, COUNT = "draft_general", 24, 6
NAMES, LONG = (NAME, "draft_code", "draft_suffix"), 32
OBJECTIVES = (Objective(), Objective("interactive", 0.5, 0.004), Objective("batch", math.inf, 5.0))
DEAR = CostTable(  # passes that make it pay to drop some drafts, and not all
    "made up",
    "for tests",
    tuple((rows, tokens, 0.01 + 0.0004 * tokens) for rows in (1, 8) for tokens in (rows, 256)),
    (),
    {NAME: ((1, 1, 0.001), (8, 6, 0.002))},
)
SELECTORS = {
    "worth": {"policy": "fixed:5", "selection": "worth"},
    "adaptive": {"policy": "adaptive", "selection": "worth"},
    "adaserve": {"policy": "adaserve", "adaserve": ("b1=18", "d_min=4")},
}


@cache
def asked() -> list[tuple[Ints, Sampling]]:
    samplings = list(SAMPLINGS.values())
    return [
        (texts()[number * 23], replace(samplings[number % 3], seed=number, end_ids=target().info().end_ids))
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def plain() -> Outputs:
    return plainly(asked(), LONG)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", range(1, MAX_WIDTH + 1))
def test_no_text_depends_on_what_is_selected(plain: Outputs, width: int) -> None:
    for selector, settings in SELECTORS.items():
        planner = build(
            SpeculationSettings(width=width, max_depth=5, drafters=(NAME,), **settings), (NAME,), max_rows=8, costs=DEAR
        )
        wanted = [
            request(key, prompt, LENGTH, sampling=sampling, objective=OBJECTIVES[key % 3])
            for key, (prompt, sampling) in enumerate(asked())
        ]
        sink, records = serve(planner, wanted, [NAME], COUNT)
        assert [sink.tokens[key] for key in range(COUNT)] == [tokens[:LENGTH] for tokens in plain], selector
        figures = {
            labels.get("stage"): value for name, labels, value in planner.figures() if name == "covey_tree_nodes_total"
        }
        assert 0 < figures["accepted"] < figures["selected"] < figures["proposed"], (selector, figures)
        widths = np.concatenate([record.plan.width[: record.decoding] for record in records])
        assert widths.max() <= width


@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["ucb-bd:0.1", "random"])
def test_no_text_depends_on_who_drafts(plain: Outputs, policy: str) -> None:
    """Drafters are moved between rounds."""
    settings = SpeculationSettings(policy="fixed:4", drafter_policy=policy, max_depth=4, drafters=NAMES)
    wanted = [request(key, prompt, LONG, sampling=sampling) for key, (prompt, sampling) in enumerate(asked())]
    sink, records = serve(build(settings, NAMES, max_rows=8), wanted, NAMES, COUNT)
    assert [sink.tokens[key] for key in range(COUNT)] == plain
    assert len({name for record in records for name in record.plan.drafter if name}) > 1
