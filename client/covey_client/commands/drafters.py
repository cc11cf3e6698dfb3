"""`covey drafters`: which drafters are in memory and how large the KV pool is; an administrator also moves them."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from covey_client.commands import flags
from covey_client.errors import InvalidRequest
from covey_client.reports import Reports

ACTIONS = {
    "list": "who is in memory",
    "load": "it comes back when there is room, and the server's policy decides again",
    "unload": "it leaves memory and stays away",
    "pin": "it comes back and stays in memory",
}


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser("drafters", help="list or move drafters", description="Ask a server, or tell it.")
    parser.add_argument(
        "action",
        nargs="?",
        choices=tuple(ACTIONS),
        default="list",
        help="; ".join(f"{name}: {meaning}" for name, meaning in ACTIONS.items()),
    )
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="of a drafter")
    flags.add_http_url(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if bool(given.name) == (given.action == "list"):
        raise InvalidRequest("name: list takes none, load, unload and pin take a drafter's")
    reports = Reports(flags.http_url(given))
    if given.action == "list":
        found = reports.memory()
    else:
        found = reports.wish(given.action, given.name)
    _print(found)
    return 0


def _print(found: dict[str, Any]) -> None:
    table = Table("drafter", "state", "wanted", "memory", box=None)
    for name, drafter in found["drafters"].items():
        table.add_row(name, drafter["state"], drafter["wish"], f"{drafter['bytes'] / 2**20:.1f} MiB")
    console = Console()
    console.print(table)
    console.print(
        f"KV pool {found['pool_bytes'] / 2**20:.1f} MiB, {found['blocks_gained']} blocks gained; "
        f"budget {found['budget_bytes'] / 2**20:.1f} MiB"
    )
