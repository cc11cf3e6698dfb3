"""Plays policies against a simulated device, `python -m loadtest.simulation`: their regret and how it grows.

slope       of log regret over log rounds from round 1,000 on, regret as in Nightjar v2, equations 5 and 6
efficiency  expected speed over that of the oracle, which knows the device and switches for nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from covey.contracts.errors import SettingError
from covey.contracts.profile import SpeculationSettings
from covey.planner import policies
from covey.planner.switching import SwitchCosts
from loadtest.simulation.devices import DEVICES, environment
from loadtest.simulation.replay import Replay, log_spaced, replay


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", nargs="+", default=["nightjar-v1", "nightjar", "covey"], metavar="NAME")
    parser.add_argument("--device", choices=list(DEVICES), default="card")
    parser.add_argument("--rows", type=int, nargs="+", default=[16], help="batch sizes, drawn evenly for each round")
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args(arguments)
    if wanted.rounds < 2000 or min(wanted.rows) < 1 or wanted.repetitions < 1:
        parser.error("at least 2,000 rounds, one repetition and batch size 1")
    print(f"{'simulated ' + wanted.device:24}{'slope':>8}{'efficiency':>12}   rounds by depth")
    for name in wanted.policies:
        try:
            runs = [_run(name, wanted, wanted.seed + index) for index in range(wanted.repetitions)]
        except (SettingError, ValueError) as error:
            parser.error(f"{name}: {error}")
        depths = np.sum([counts for run in runs for counts in run.depths.values()], axis=0)
        slope = np.median([run.slope(1000) for run in runs])
        efficiency = np.median([run.efficiency for run in runs])
        print(f"{name:24}{slope:8.2f}{efficiency:12.4f}   {' '.join(map(str, depths.tolist()))}", flush=True)
    return 0


def _run(name: str, wanted: argparse.Namespace, seed: int) -> Replay:
    device = environment(wanted.device, 0.05)
    world, choices, arrivals = np.random.default_rng(seed).spawn(3)
    batches = arrivals.choice(np.array(wanted.rows), wanted.rounds).tolist()
    setting = policies.Setting(
        name,
        max_depth=device.max_depth,
        max_rows=max(wanted.rows),
        rng=choices,
        switch_costs=SwitchCosts(),
        table=SpeculationSettings().table,
    )
    policy = policies.make(setting)
    return replay(policy, device, batches, world, checkpoints=log_spaced(1000, wanted.rounds, 25))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
