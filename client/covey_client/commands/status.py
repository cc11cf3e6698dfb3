"""`covey status`: whether a server is ready, its models and key figures; or its planner's last decisions. The exit
status is 1 if it is not ready."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from covey_client import status
from covey_client.commands import flags
from covey_client.errors import InvalidRequest, ServerError
from covey_client.printable import printable
from covey_client.reports import Reports

_COLOURS = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow", "UNAVAILABLE": "red"}


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser("status", help="readiness, models, key figures", description="Ask a server.")
    flags.add_http_url(parser)
    flags.add_metrics_url(parser)
    parser.add_argument("--json", action="store_true", help="all figures, for programs")
    parser.add_argument("--all", action="store_true", help="all figures, and models that are not loaded")
    parser.add_argument(
        "--decisions",
        type=int,
        nargs="?",
        const=20,
        metavar="N",
        help="instead: the planner's last choices, one a line, with ms per token predicted and observed by depth",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if given.decisions is not None:
        return _decisions(given)
    found = status.read(flags.http_url(given), given.metrics_url)
    if given.json:
        models = None if found.models is None else [dataclasses.asdict(model) for model in found.models]
        shown = {
            "ready": found.ready,
            "served": dict(found.served),
            "emulated": found.emulated,
            "models": models,
            "figures": status.figures(found.samples),
        }
        print(_json(shown))
    else:
        _print(found, flags.http_url(given), whole=given.all)
    return 0 if found.ready else 1


def _decisions(given: argparse.Namespace) -> int:
    if given.decisions < 1:
        raise InvalidRequest(f"decisions: got {given.decisions}, allowed: 1 or more")
    found = Reports(flags.http_url(given)).decisions(given.decisions)
    if given.json:
        print(_json(found))
        return 0
    try:
        lines = [f"policy {found['policy']}", *(str(decision["line"]) for decision in found["decisions"])]
    except (KeyError, TypeError):
        raise ServerError("the server's decisions are not in Covey's form") from None
    print("\n".join(map(printable, lines)))
    return 0


def _json(value: Any) -> str:
    """Return valid JSON: null in place of numbers that are not finite."""
    return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))


def _print(found: status.Status, address: str, *, whole: bool) -> None:
    console = Console(markup=False, emoji=False)
    readiness = ("ready", "green") if found.ready else ("not ready", "red")
    console.print(Text.assemble(readiness, f" at {printable(address)}"), soft_wrap=True)
    served = defaultdict(lambda: "?", {name: printable(said) for name, said in found.served.items()})
    if served:
        console.print(f"{served['target']}: on {served['device']}, {served['dtype']}, numerics {served['numerics']}")
        ends = f"a text ends at token {served['end_tokens']}" if served.get("end_tokens") else "no token ends a text"
        template = "chat template" if served.get("chat_template") == "yes" else "no chat template"
        if "longest" in served:
            room = f"up to {served['longest']} tokens in a request, {served['pool_tokens']} in the KV pool"
            console.print(room, highlight=False)
        console.print(f"{ends}; {template}", highlight=False)
    if served.get("sampling_defaults"):
        console.print(f"requests to /v1 that do not say how: {served['sampling_defaults']}", highlight=False)
    if served.get("left_out"):
        console.print(f"left out, because their tokenizer is not the target's: {served['left_out']}")
    if found.emulated:
        said = ": texts are a hash's and timings a cost table's; no model runs"
        console.print(Text.assemble(("emulated", "yellow"), said))
    if found.models is None:
        console.print(
            "models: this server lists them only with its secret: set COVEY_ADMIN_SECRET, or "
            "COVEY_ADMIN_SECRET_FILE to its file; if the server drew its secret, ask as its user on its machine"
        )
    else:
        table = Table("model", "state", "reason", box=None)
        for model in found.models if whole else (each for each in found.models if each.state):
            state = Text(printable(model.state) or "not loaded", _COLOURS.get(model.state, "dim"))
            table.add_row(printable(model.name), state, printable(model.reason))
        console.print(table)
    figures = status.figures(found.samples)
    if figures and not whole:
        figures = status.key_figures(figures)
    if figures:
        table = Table(Column("figure", overflow="fold"), "value", box=None)  # labels stand at a long name's end
        for name, value in figures.items():
            table.add_row(printable(name), f"{value:.6g}")
        console.print(table)
        if not whole:
            console.print("--all shows the other figures, and these by drafter, outcome and reason")
    else:
        console.print("no figures: the metrics port does not answer, or the server has had no request")
