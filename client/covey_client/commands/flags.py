"""Flags that commands share: where the server is, and every setting of a request."""

from __future__ import annotations

import argparse
import os
from typing import Any

from covey_client import running
from covey_client.address import Address
from covey_client.caller import TIMEOUT, USUAL_PORTS
from covey_client.client import Client
from covey_client.errors import InvalidRequest
from covey_client.wire import INPUTS, MODEL, PROMPT

Subparsers = Any  # argparse does not export the type of what add_subparsers returns
_TYPES = {"INT32": int, "UINT64": int, "FP32": float, "BYTES": str}
_NOT_FLAGS = (*PROMPT, "stream")


def add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--url",
        default="",
        metavar="HOST:PORT",
        help="of the gRPC port, or any port of your server on this machine (default: COVEY_URL, or the server "
        "that runs here)",
    )
    group.add_argument("--model", default=MODEL, help="Triton model to ask (default: %(default)s)")
    group.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S", help="seconds for a whole answer")
    group.add_argument("--tls", action="store_true")


def client(given: argparse.Namespace) -> Client:
    try:
        return Client(_grpc_url(given.url), model=given.model, timeout=given.timeout, tls=given.tls)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def add_http_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--http-url",
        "--url",
        dest="http_url",
        default="",
        metavar="HOST:PORT",
        help="of the HTTP port (default: port 8000 of COVEY_URL's host, or of the server that runs here)",
    )


def add_metrics_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-url", default="", metavar="HOST:PORT", help="of the metrics port (default: port 8002 of that host)"
    )


def http_url(given: argparse.Namespace) -> str:
    """Return the address for HTTP. Raises InvalidRequest for a flag or COVEY_URL that is no address."""
    try:
        if getattr(given, "metrics_url", ""):
            Address.parse(given.metrics_url, port=8002)
        return _port("http", given.http_url or _http_of_grpc())
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _grpc_url(url: str = "") -> str:
    return _port("grpc", url or os.environ.get("COVEY_URL") or running.usual())


def _http_of_grpc() -> str:
    """Return the HTTP port of the server whose gRPC port COVEY_URL names."""
    address = Address.parse(_grpc_url(), port=USUAL_PORTS["grpc"])
    server = running.server_at(address)
    return address.with_port(USUAL_PORTS["http"] if server is None else server.http)


def _port(protocol: str, url: str) -> str:
    """Return the protocol's port of the server here that has `url` among its ports; `url` if there is none. Requests
    for the front stay with it."""
    address = Address.parse(url, port=USUAL_PORTS[protocol])
    server, own = running.server_at(address), address.port
    if server is not None:
        grpc = server.front_grpc if own in server.fronts else server.grpc
        own = {"grpc": grpc, "http": server.http}[protocol]
    return url if own == address.port else address.with_port(own)


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings of the request; the server's defaults hold for those left out")
    for field in INPUTS:
        flag = "--" + field.name.replace("_", "-")
        if field.name in _NOT_FLAGS:
            continue
        if field.dtype == "BOOL":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=field.doc)
        elif field.many:
            group.add_argument(flag, action="append", metavar="TEXT", help=f"{field.doc}; may be repeated")
        else:
            metavar = {"INT32": "N", "UINT64": "N", "FP32": "X", "BYTES": "TEXT"}[field.dtype]
            group.add_argument(flag, type=_TYPES[field.dtype], metavar=metavar, help=field.doc)


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the given settings by their wire names."""
    values = {field.name: getattr(given, field.name, None) for field in INPUTS if field.name not in _NOT_FLAGS}
    return {name: value for name, value in values.items() if value is not None}
