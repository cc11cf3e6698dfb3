"""`covey plan-star`: computes how many targets one drafter can serve, from measured times; asks no server."""

from __future__ import annotations

import argparse
import dataclasses
import json

from rich.console import Console
from rich.table import Table

from covey_client.commands import flags
from covey_client.errors import InvalidRequest
from covey_client.star.model import Star, StarPoint


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan-star",
        help="how many targets one drafter can serve",
        description="Compute from measured times: the number of targets that keep one drafter busy (N_full), the "
        "largest at which none is slower than alone (N_max), and tokens per second.",
    )
    times = parser.add_argument_group("measured, in milliseconds")
    times.add_argument("--step-ms", type=float, metavar="T", help="t_s: one level of a draft")
    times.add_argument("--verify-ms", type=float, metavar="T", help="t_v: a target's pass over a draft")
    times.add_argument("--plain-ms", type=float, metavar="T", help="a target's token without drafts")
    times.add_argument("--transfer-ms", type=float, default=0.0, metavar="T", help="t_c: messages of a round")
    times.add_argument("--cold-step-ms", type=float, default=0.0, metavar="T", help="t_s after a long gap")
    times.add_argument("--cold-after-ms", type=float, default=10.0, metavar="T", help="that gap")
    parser.add_argument("--acceptance", type=float, metavar="B", help="share of drafts accepted after accepted ones")
    parser.add_argument("--depth", type=int, default=4, metavar="D", help="tokens of a draft (default: 4)")
    parser.add_argument("--most", type=int, default=8, metavar="N", help="targets in the table (default: 8)")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if given.most < 1:
        raise InvalidRequest(f"most: got {given.most}, allowed: 1 and above")
    star = _star(given)
    points = [star.point(count) for count in range(1, given.most + 1)]
    if given.json:
        found = {"full": star.full, "most": star.most, "tokens_per_round": star.tokens}
        print(json.dumps(found | {"points": [dataclasses.asdict(point) for point in points]}))
        return 0
    Console().print(_table(points))
    print(f"N_full {star.full}, N_max {star.most}, {star.tokens:.2f} tokens a round")
    return 0


def _star(given: argparse.Namespace) -> Star:
    needed = {"step-ms": given.step_ms, "verify-ms": given.verify_ms, "plain-ms": given.plain_ms}
    missing = [name for name, value in {**needed, "acceptance": given.acceptance}.items() if value is None]
    if missing:
        raise InvalidRequest(f"--{missing[0]} is needed: servers' cost tables and metrics have the measured times")
    try:
        return Star(
            step=given.step_ms / 1000,
            verify=given.verify_ms / 1000,
            transfer=given.transfer_ms / 1000,
            acceptance=given.acceptance,
            depth=given.depth,
            plain=given.plain_ms / 1000,
            cold_step=given.cold_step_ms / 1000,
            cold_after=given.cold_after_ms / 1000,
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _table(points: list[StarPoint]) -> Table:
    table = Table("targets", "tokens/s", "each", "round ms", "wait ms", "idle ms", "drafter's load", box=None)
    for point in points:
        numbers = (point.whole, point.each, 1e3 * point.round, 1e3 * point.wait, 1e3 * point.idle)
        table.add_row(str(point.targets), *(f"{number:.1f}" for number in numbers), f"{point.load:.0%}")
    return table
