"""`covey profile`: measure a running server's cost curves into a table that a profile's speculation.costs can name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from covey_client.commands import flags
from covey_client.costs.table import CostTable
from covey_client.errors import InvalidRequest, ServerError
from covey_client.progress import status
from covey_client.reports import Reports, ServerFacts

ALL = "all"


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="measure a server's cost curves",
        description="Have a running server measure what its rounds take, by batch size and draft depth, and write a "
        "cost table. A request to the server ends it.",
    )
    parser.add_argument("name", help="the table's name in profiles/costs, or a path that ends in .json")
    parser.add_argument("--quick", action="store_true", help="what every server measures before it serves, in seconds")
    parser.add_argument(
        "--drafters", nargs="+", default=(), metavar="NAME", help="whom to measure, or all (default: the first)"
    )
    parser.add_argument("--force", action="store_true", help="write over a table of that name")
    flags.add_grpc_url(parser)
    flags.add_http_url(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    path = _path(given.name)
    if path.exists() and not given.force:
        raise InvalidRequest(f"{path} exists: choose another name, or --force writes over it")
    reports = Reports(flags.http_url(given))
    facts = reports.facts()
    drafters = _drafters(given.drafters, facts)
    with status(Console(stderr=True), f"{facts.model} measures what its rounds take"):
        found = reports.measure(drafters, whole=not given.quick)
    if not found.plain:
        raise ServerError("no round had the shape that was wanted: is the token budget or the KV pool very small?")
    table = replace(found, name=path.stem, origin=_origin(found, facts))
    table.save(path)
    _print(table)
    print(path)
    return 0


def _path(name: str) -> Path:
    if Path(name).suffix == ".json":
        return Path(name)
    try:
        from covey.contracts.profile import costs_path
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"name: got {name!r}, allowed: a path that ends in .json where the package covey is not installed"
        ) from None
    return costs_path(name)


def _drafters(wanted: Sequence[str], facts: ServerFacts) -> Sequence[str]:
    if list(wanted) == [ALL]:
        return facts.drafters
    unknown = [name for name in wanted if name not in facts.drafters]
    if unknown:
        raise InvalidRequest(f"drafters: got {unknown[0]!r}, allowed: {', '.join(facts.drafters) or 'none there are'}")
    return wanted or facts.drafters[:1]


def _origin(table: CostTable, facts: ServerFacts) -> str:
    return f"{table.origin} {facts.dtype} on {facts.device}, numerics {facts.numerics}, profile {facts.profile}."


def _print(table: CostTable) -> None:
    """Print whole rounds: at a glance, what a draft of each depth must bring."""
    overhead = dict(table.overhead)
    verify = {(rows, tokens): seconds for rows, tokens, seconds in table.verify}
    drafts = {"no drafter": tuple((rows, 0, 0.0) for rows, _ in table.plain), **table.draft}
    found = Table("rows", "depth", "drafter", "ms a round", box=None)
    for drafter, cells in drafts.items():
        for rows, depth, seconds in cells:
            whole = seconds + verify[rows, rows * (depth + 1)] + overhead[rows]
            found.add_row(str(rows), str(depth), drafter, f"{1000 * whole:.2f}")
    Console().print(found)
