from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np

from covey.requests.rounds import Plan, RoundRecord
from covey.tritonio.drafts import Drafts

PREFIX = "covey_spec_decode_num_"


def record(drafters: list[str], sizes: list[int], accepts: list[int]) -> RoundRecord:
    counts = np.asarray(sizes, np.int32)
    plan = Plan(counts, np.ones(len(sizes), np.int32), tuple(drafters))
    trees, found = int(np.count_nonzero(counts)), np.asarray(accepts, np.int32)
    return cast("RoundRecord", SimpleNamespace(trees=trees, plan=plan, sizes=counts, accepts=found, read={}))


def totals(drafts: Drafts) -> dict[tuple[str, ...], float]:
    found = list(drafts.totals())
    assert max(Counter((name, *labels.values()) for name, labels, _ in found).values(), default=1) == 1
    return {(name.removeprefix(PREFIX), *labels.values()): value for name, labels, value in found}


def test_counts_by_drafter_and_position() -> None:
    drafts = Drafts()
    drafts.add(record(["a", "b", "", "a"], [3, 2, 0, 3], [2, 0, 0, 3]))
    drafts.add(record(["a", ""], [5, 0], [5, 0]))
    drafts.add(record(["a"], [2], [0]))
    assert totals(drafts) == {
        ("drafts_total", "a"): 4,
        ("draft_tokens_total", "a"): 13,
        ("accepted_tokens_total", "a"): 10,
        ("accepted_tokens_per_pos_total", "a", "0"): 3,
        ("accepted_tokens_per_pos_total", "a", "1"): 3,
        ("accepted_tokens_per_pos_total", "a", "2"): 2,
        ("accepted_tokens_per_pos_total", "a", "3"): 1,
        ("accepted_tokens_per_pos_total", "a", "4"): 1,
        ("drafts_total", "b"): 1,
        ("draft_tokens_total", "b"): 2,
        ("accepted_tokens_total", "b"): 0,
    }


def test_rounds_without_drafts_count_nothing() -> None:
    drafts = Drafts()
    drafts.add(record(["", ""], [0, 0], [0, 0]))
    drafts.add(record([], [], []))
    assert not totals(drafts)
