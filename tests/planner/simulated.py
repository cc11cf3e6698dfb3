"""Devices and drafters that the planner's tests simulate."""

from __future__ import annotations

from covey.planner.replay import Costs, Environment, roofline

MEMORY_BOUND = roofline(0.050, 0.0001, 256, call=0.001, step=0.0010, switch_per_token=1e-6)
CARD = roofline(0.034, 0.0004, 64, call=0.001, step=0.0020, switch_per_token=2e-6)
PROCESSOR = roofline(0.010, 0.0012, 4, call=0.0015, step=0.0006, switch_per_token=1e-5)
COMPUTE_BOUND = roofline(0.010, 0.0020, 1, call=0.002, step=0.0010, switch_per_token=1e-5)
REGIMES: dict[str, tuple[Costs, tuple[float, ...]]] = {
    "memory": (MEMORY_BOUND, (0.9, 0.88, 0.86, 0.84, 0.8)),
    "card": (CARD, (0.8, 0.75, 0.7, 0.65, 0.6)),
    "processor": (PROCESSOR, (0.8, 0.75, 0.7, 0.65, 0.6)),
    "compute": (COMPUTE_BOUND, (0.6, 0.5, 0.5, 0.4, 0.4)),
}


def environment(regime: str, noise: float = 0.08) -> Environment:
    costs, rates = REGIMES[regime]
    return Environment(costs, ((0, rates),), noise)
