"""`covey plan`: how many targets and drafters a load takes, from a cost table; asks no server."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from covey_client.commands import flags
from covey_client.costs.table import CostTable
from covey_client.errors import InvalidRequest
from covey_client.star.capacity import QUANTILE, CapacityPlan, LatencyGoal, TargetLoad, plan

AROUND = (-1, 0, 1, 2)  # targets in the table, beside what is needed


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="how many targets and drafters a load takes",
        description="From a cost table, as covey profile and servers themselves write it, and a load: the fewest "
        f"targets that keep to the objectives in {QUANTILE:.0%} of the time, and the drafters that they need.",
    )
    parser.add_argument("costs", type=Path, metavar="FILE", help="a cost table")
    load = parser.add_argument_group("the load")
    load.add_argument("--rate", type=float, required=True, metavar="R", help="requests a second, of all")
    load.add_argument("--prompt", type=float, required=True, metavar="N", help="tokens of a prompt that are not reused")
    load.add_argument("--output", type=float, required=True, metavar="N", help="tokens of an answer")
    spread = "standard deviation of the logarithm of both (default: 0.8)"
    load.add_argument("--spread", type=float, default=0.8, metavar="S", help=spread)
    load.add_argument("--ttft-ms", type=float, default=math.inf, metavar="T", help="objective: to the first token")
    load.add_argument("--tpot-ms", type=float, default=math.inf, metavar="T", help="objective: for each further one")
    target = parser.add_argument_group("a target")
    target.add_argument("--max-running", type=int, default=64, metavar="N", help="scheduler.max_running (default: 64)")
    target.add_argument("--kv-tokens", type=int, default=0, metavar="N", help="tokens that KV memory holds (0: enough)")
    drafts = parser.add_argument_group("its drafts")
    drafts.add_argument(
        "--acceptance", type=float, metavar="B", help="share accepted behind accepted ones; none: plain"
    )
    drafts.add_argument("--drafter", default="", metavar="NAME", help="of the table (default: its first)")
    drafts.add_argument("--depth", type=int, default=5, metavar="D", help="tokens of a draft at most (default: 5)")
    drafts.add_argument(
        "--share", type=int, default=0, metavar="N", help="drafters elsewhere, for so many targets each"
    )
    drafts.add_argument("--transfer-ms", type=float, default=0.0, metavar="T", help="then: messages of a round")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    try:
        server = _server(given)
        objective = LatencyGoal(given.ttft_ms / 1000, given.tpot_ms / 1000)
        if not 0 < given.rate < math.inf:
            raise ValueError(f"rate: got {given.rate:g}, allowed: above 0")
        found = plan(server, given.rate, objective)
    except (ValueError, OSError) as error:
        raise InvalidRequest(str(error)) from None
    if found is None:
        raise InvalidRequest("ttft-ms, tpot-ms: a target misses them with a single request")
    if given.json:
        print(json.dumps(dataclasses.asdict(found) | {"tokens_per_second": found.most.rate * given.output}))
        return 0
    Console().print(_table(dataclasses.replace(server, sharing=found.sharing), given.rate, found))
    drafters = f", drafters {found.drafters} ({found.sharing} targets each)" if found.drafters else ""
    print(f"targets {found.targets}{drafters}; one takes {found.most.rate:.2f} requests/s at the most")
    return 0


def _server(given: argparse.Namespace) -> TargetLoad:
    try:
        costs = CostTable.load(given.costs)
    except (ValueError, OSError) as error:
        raise InvalidRequest(
            f"{given.costs} is no cost table ({error}): `covey profile NAME` measures one, and profiles/costs has some"
        ) from None
    drafter = given.drafter or next(iter(costs.draft), "")
    if given.acceptance is None and (given.drafter or given.share):
        raise ValueError("acceptance is needed: covey top shows it")
    return TargetLoad(
        costs,
        given.prompt,
        given.output,
        given.max_running,
        given.kv_tokens,
        given.spread,
        acceptance=given.acceptance or 0.0,
        drafter=drafter if given.acceptance is not None else "",
        depth=given.depth,
        sharing=given.share,
        transfer=given.transfer_ms / 1000,
    )


def _table(server: TargetLoad, rate: float, found: CapacityPlan) -> Table:
    slow = f"in {QUANTILE:.0%}"
    columns = ("targets", "requests/s each", "rows", "busy", "TPOT ms", slow, "TTFT ms", slow)
    table = Table(*columns, box=None)
    for targets in (found.targets + more for more in AROUND if found.targets + more > 0):
        point = server.at(rate / targets)
        numbers = ["-"] * 6
        if point is not None:
            times = (point.tpot, point.slow_tpot, point.ttft, point.slow_ttft)
            numbers = [f"{point.rows:.1f}", f"{point.busy:.0%}", *(f"{1000 * seconds:.1f}" for seconds in times)]
        table.add_row(str(targets), f"{rate / targets:.2f}", *numbers)
    return table
