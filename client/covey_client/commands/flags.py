"""Flags that commands share: where the server is, and every setting of a request."""

from __future__ import annotations

import argparse
import os
from typing import Any

from covey_client.caller import TIMEOUT, USUAL_PORTS
from covey_client.client import Client
from covey_client.wire import INPUTS, MODEL

Subparsers = Any  # argparse does not export the type of what add_subparsers returns
_TYPES = {"INT32": int, "UINT64": int, "FP32": float, "BYTES": str}
_NOT_FLAGS = ("text_input", "input_ids", "stream")


def add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--url",
        default=os.environ.get("COVEY_URL", "127.0.0.1"),
        metavar="HOST:PORT",
        help="of the gRPC port, or of the HTTP port with --transport http (default: COVEY_URL or this machine)",
    )
    group.add_argument("--transport", choices=tuple(USUAL_PORTS), default="grpc")
    group.add_argument("--model", default=MODEL, help="Triton model to ask (default: %(default)s)")
    group.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S", help="seconds for a whole answer")
    group.add_argument("--tls", action="store_true")


def client(given: argparse.Namespace) -> Client:
    return Client(given.url, transport=given.transport, model=given.model, timeout=given.timeout, tls=given.tls)


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings of the request; the server's defaults hold for those left out")
    for field in INPUTS:
        flag = "--" + field.name.replace("_", "-")
        if field.name in _NOT_FLAGS:
            continue
        if field.dtype == "BOOL":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
        elif field.many:
            group.add_argument(flag, action="append", metavar="TEXT", help="may be repeated")
        else:
            metavar = {"INT32": "N", "UINT64": "N", "FP32": "X", "BYTES": "TEXT"}[field.dtype]
            group.add_argument(flag, type=_TYPES[field.dtype], metavar=metavar)


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """What was set, by its wire name."""
    values = {field.name: getattr(given, field.name, None) for field in INPUTS if field.name not in _NOT_FLAGS}
    return {name: value for name, value in values.items() if value is not None}
