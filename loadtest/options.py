"""Has the options of a load test, on the command line of `python -m loadtest` and of Locust's own alike."""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError
from covey_client import running
from covey_client.address import Address
from covey_client.caller import USUAL_PORTS
from covey_client.errors import ConnectionLost, CoveyClientError, InvalidRequest
from loadtest import arrivals, asks, levels, questions

USUAL = "(default: %(default)s)"


@dataclass(frozen=True)
class Plan:
    """Describes a checked load test, before anything has been sent."""

    grpc_url: str
    http_url: str
    metrics_url: str
    seconds: float
    grace: float
    timeout: float
    seed: int
    shape: arrivals.Shape
    source: asks.Source
    sources: dict[str, asks.Source]  # of levels that have a source, by name
    send_slo: bool
    levels: tuple[levels.Level, ...]
    settings: dict[str, Any]  # of requests, by wire name
    tenant: str  # prefix of this run's tenants, one for each turn of the prompts; "": no names
    described: dict[str, Any]  # for the report: the options, without paths

    def rng(self, purpose: str) -> random.Random:
        """Return a separate generator for each purpose."""
        return random.Random(f"{self.seed} {purpose}")


def add(parser: Any) -> None:
    """Declare the traffic's flags; `parser` is argparse's or Locust's."""
    parser.add_argument("--url", default="", help="gRPC port, HOST:PORT (default: COVEY_URL, or the server here)")
    usual = "HOST:PORT (default: that of the server here, or of the same host"
    parser.add_argument("--http-url", default="", help=f"HTTP port, {usual} 8000)")
    parser.add_argument("--metrics-url", default="", help=f"metrics port, {usual} 8002)")
    parser.add_argument("--shape", default="closed:8", help=f"arrivals: {', '.join(arrivals.SHAPES)} {USUAL}")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="stretch a trace to this many requests a second, on average"
    )
    parser.add_argument("--length-scale", type=float, default=1.0, help=f"multiply a trace's lengths {USUAL}")
    parser.add_argument("--prompts", default="", help=f"{', '.join(asks.SOURCES)} (default: own; synthetic for traces)")
    parser.add_argument("--tokens", default="", help="MIN:MAX length of answers without another limit (default: 16:64)")
    parser.add_argument("--context", type=int, default=2048, help=f"longest synthetic request, in tokens {USUAL}")
    parser.add_argument("--slo", action="append", default=[], help="NAME:WEIGHT:TPOT_MS:TTFT_MS, may be repeated")
    parser.add_argument("--mix", default="", help="instead: shares COPILOT/CHAT/SUMMARY of served classes, as 60/20/20")
    parser.add_argument("--send-slo", action="store_true", help="tell the server of each request's service level")
    parser.add_argument("--temperature", type=float, default=0.0, help=f"of every request {USUAL}")
    parser.add_argument("--speculation", default="", help="auto, off or fixed:k, of every request")
    parser.add_argument(
        "--repeat", action="store_true", help="name no tenants: lookups replay earlier answers to a prompt that repeats"
    )
    parser.add_argument("--request-timeout", type=float, default=120.0, help=f"seconds for a whole answer {USUAL}")
    parser.add_argument("--seed", type=int, default=1, help=f"of arrivals, prompts and levels {USUAL}")


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Offer load to a running Covey server and write one self-contained HTML report.",
        epilog="Ctrl-C ends a run early; its report covers what ran.",
    )
    add(parser)
    parser.add_argument("--seconds", type=float, default=60.0, help=f"how long load is offered {USUAL}")
    parser.add_argument("--grace", type=float, default=10.0, help=f"seconds to wait for answers afterwards {USUAL}")
    parser.add_argument("--out", type=Path, default=Path("runs/loadtest"), help=f"folder for the run's folder {USUAL}")
    parser.add_argument("--name", default="", help="of the run's folder (default: the time)")
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument("--compare", type=Path, metavar="FOLDER", help="an earlier run's folder")
    compared.add_argument(
        "--beside-plain", action="store_true", help="first the same load without speculation, to compare"
    )
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="offer no load: write a run's report again")
    return parser


def plan(given: argparse.Namespace, *, seconds: float, grace: float) -> Plan:
    """Read and check everything. Raises SettingError."""
    above = (seconds, given.length_scale, given.request_timeout, given.context)
    if not all(map(math.isfinite, (*above, grace, given.rate))) or min(above) <= 0 or min(grace, given.rate) < 0:
        raise SettingError("seconds, length-scale, request-timeout, context: above 0; grace, rate: at least 0")
    if given.mix and given.slo:
        raise SettingError("mix, slo: allowed: one of the two")
    tokens = given.tokens or (levels.MIX_TOKENS if given.mix else "16:64")
    shortest, longest = _lengths(tokens)
    lengths = asks.AnswerLengths(shortest, longest, given.context)
    shape = arrivals.parse(given.shape, rate=given.rate or None, lengths=given.length_scale)
    trace = given.shape.partition(":")[0] == "azure"
    prompts = given.prompts or ("synthetic" if trace else "own")
    settings: dict[str, Any] = {"temperature": given.temperature}
    if given.speculation:
        settings["speculation"] = given.speculation
    chosen = levels.mix(given.mix) if given.mix else levels.parse(given.slo)
    domains = {level.name: level.domain for level in chosen if level.domain and not given.prompts}
    try:
        url = given.url or os.environ.get("COVEY_URL") or running.usual()
        grpc = Address.parse(url, port=USUAL_PORTS["grpc"])
        server = running.server_at(grpc)
        usual = (USUAL_PORTS["http"], 8002) if server is None else (server.http, server.metrics)
        http, metrics = (
            Address.parse(said or grpc.host, port=port)
            for said, port in zip((given.http_url, given.metrics_url), usual)
        )
    except (ValueError, InvalidRequest) as error:
        raise SettingError(str(error)) from None
    front = Address.parse(server.host, port=server.front) if server and server.front and not given.http_url else http
    own = _own(front.target, metrics.target) if prompts.startswith("own") or domains else {}
    return Plan(
        grpc_url=grpc.target,
        http_url=http.target,
        metrics_url=metrics.target,
        seconds=seconds,
        grace=grace,
        timeout=given.request_timeout,
        seed=given.seed,
        shape=shape,
        source=asks.parse(prompts, lengths, own),
        sources={name: asks.parse(f"own:{domain}", lengths, own) for name, domain in domains.items()},
        send_slo=given.send_slo,
        levels=chosen,
        settings=settings,
        tenant="" if given.repeat else f"loadtest {time.time_ns():x}",
        described={
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "server": grpc.target,
            "shape": _without_folder(given.shape),
            "trace_rate": given.rate or None,
            "length_scale": given.length_scale,
            "prompts": _without_folder(prompts),
            "chat_form": questions.formed(own),
            "answer_tokens": tokens,
            "mix": given.mix or None,
            "send_slo": given.send_slo,
            "repeat": given.repeat,
            "seconds": seconds,
            "seed": given.seed,
            **settings,
        },
    )


def _own(http_url: str, metrics_url: str) -> questions.Prompts:
    """Return the project's prompts in the form of the server's model; if no server answers, the run reports it."""
    try:
        return questions.of_server(http_url, metrics_url)
    except ConnectionLost:
        return questions.unformed()
    except CoveyClientError as error:
        print(f"loadtest: texts to go on with, no chats: {error}; --http-url names the front", file=sys.stderr)
        return questions.unformed()


def _lengths(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdigit() and high.isdigit() and 0 < int(low) <= int(high)):
        raise SettingError(f"tokens: got {text!r}, allowed: MIN:MAX, both above 0")
    return int(low), int(high)


def _without_folder(text: str) -> str:
    kind, colon, rest = text.partition(":")
    return kind + colon + (Path(rest).name if "/" in rest else rest)
