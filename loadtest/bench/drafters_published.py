"""What MetaSD printed for its black-box drafters (Table 3), and drafters whose acceptance is fitted to it.

The fit is at one request at a time and at the paper's fixed length, by the emulated costs: a drafter is right so often
that its speed-up over plain decoding is the printed one. Between the general drafter (the paper's OFA) and the
specialists lies a gap, which can be narrowed or widened: gap 1 is the paper's, with 0 all are the general one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from covey.planner.cost_table import Surface
from covey_client.costs.table import CostTable

LENGTH = 5  # drafts of a round, N_max
GENERAL = "draft_general"
SPECIALISTS = {
    "code": "draft_code",
    "translation": "draft_translate",
    "summarisation": "draft_summary",
    "qa": "draft_chat",
    "math": "draft_math",
}
DRAFTERS = (GENERAL, *SPECIALISTS.values())
# Speed-up by domain: its Drafter1 to Drafter5, in the order of the specialists above, and OFA.
SPEEDUPS = {
    "code": (2.437, 1.224, 1.565, 1.814, 1.687, 2.435),
    "translation": (0.991, 2.076, 1.000, 1.019, 0.950, 1.032),
    "summarisation": (1.513, 1.087, 2.133, 1.510, 1.387, 1.526),
    "qa": (1.332, 1.200, 1.343, 1.960, 1.252, 1.267),
    "math": (1.483, 1.228, 1.378, 1.486, 2.454, 1.571),
}
# ... and of Rand, EXP3, SH and UCB, which nothing is fitted to.
PRINTED = {
    "code": {"random": 1.640, "exp3": 1.919, "sh": 2.148, "ucb-bd": 2.300},
    "translation": {"random": 1.150, "exp3": 1.217, "sh": 1.422, "ucb-bd": 1.587},
    "summarisation": {"random": 1.429, "exp3": 1.606, "sh": 1.812, "ucb-bd": 1.971},
    "qa": {"random": 1.294, "exp3": 1.437, "sh": 1.599, "ucb-bd": 1.711},
    "math": {"random": 1.471, "exp3": 1.690, "sh": 2.144, "ucb-bd": 2.280},
}


def speedup(domain: str, drafter: str, gap: float = 1.0) -> float:
    """The printed one, the distance from the general drafter's times `gap` on a logarithmic scale."""
    *own, general = SPEEDUPS[domain]
    if drafter == GENERAL:
        return general
    distance = math.log(own[list(SPECIALISTS.values()).index(drafter)] / general)
    return general * math.exp(gap * distance)


def rate(wanted: float, table: CostTable, drafter: str) -> float:
    """How often it must be right to be so much faster than plain decoding."""
    verify, draft = Surface(table.verify), Surface(table.draft[drafter])
    tokens = wanted * (verify(1, 1 + LENGTH) + draft(1, LENGTH)) / verify(1, 1)
    low, high = 0.0, 0.999
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**at for at in range(LENGTH + 1)) < tokens else (low, middle)
    return low


def rates(table: CostTable, gap: float) -> Mapping[str, Mapping[str, float]]:
    """By domain and drafter."""
    return {
        domain: {name: rate(speedup(domain, name, gap), table, name) for name in DRAFTERS} for domain in SPECIALISTS
    }
