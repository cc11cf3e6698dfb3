"""Invents devices for the replay simulator, from memory-bound to compute-bound. None of them was measured."""

from __future__ import annotations

from loadtest.simulation.replay import Costs, Environment, roofline

EASY = (0.9, 0.88, 0.86, 0.84, 0.8)
USUAL = (0.8, 0.75, 0.7, 0.65, 0.6)
HARD = (0.6, 0.5, 0.5, 0.4, 0.4)

DEVICES: dict[str, tuple[Costs, tuple[float, ...]]] = {
    "memory": (roofline(0.050, 0.0001, 256, call=0.001, step=0.0010, switch_per_token=1e-6), EASY),
    "card": (roofline(0.034, 0.0004, 64, call=0.001, step=0.0020, switch_per_token=2e-6), USUAL),
    "processor": (roofline(0.010, 0.0012, 4, call=0.0015, step=0.0006, switch_per_token=1e-5), USUAL),
    "compute": (roofline(0.010, 0.0020, 1, call=0.002, step=0.0010, switch_per_token=1e-5), HARD),
}


def environment(device: str, noise: float = 0.08) -> Environment:
    """Return the device with its drafter; acceptance does not change."""
    costs, rates = DEVICES[device]
    return Environment(costs, ((0, rates),), noise)
