"""Measures one drafter for several targets, in real time: three servers with an emulated target each and a fourth with
their emulated drafter. Devices sleep, so that what is measured beside them is the way through Triton, gRPC and the
service.

`remote_over_local` is StarSD's Figure 4.

scaling_n3         tokens/s of three servers over one's
remote_over_local  tokens/s of one target with its drafter elsewhere over one that has it beside itself
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich.console import Console

from covey.contracts.types import JsonDict
from covey.server import Server
from covey_client import Client
from covey_client.costs.table import CostTable
from covey_client.star import paper
from loadtest.bench import report
from loadtest.bench.derive import private
from loadtest.bench.session import QUICK, Session

KEYS = ("scaling_n3", "remote_over_local")
TARGETS = 3
TOKENS, QUICK_TOKENS = 600, 60
BESIDE = 0.004  # of Z that is not the pass itself
SHARED = '"target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble"'
LOCAL = "local"
COMMON = """
[target]
kind = "emulated"

[emulated]
costs = "{costs}"
acceptance = ["draft_emulated:0.8"]

[speculation]
policy = "fixed:{depth}"
costs = ""
max_depth = {depth}
drafters = [{drafters}]
draft_deadline_ms = 5000
"""


@dataclass
class StarRates:
    """Holds tokens per second by number of targets, and of one with its drafter beside it; one more for each
    repetition."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        found = {name: median(values) for name, values in self.rates.items()}
        one, three, local = (found.get(name) for name in ("1", "3", LOCAL))
        return {
            "servers": report.spreads(self.rates),
            "scaling_n3": three / one if one and three else None,
            "remote_over_local": one / local if one and local else None,
        }


def run(session: Session) -> None:
    measured = StarRates()
    session.summarise = measured.summary
    tokens = QUICK_TOKENS if session.wanted.size == QUICK else TOKENS
    repetitions = session.repetitions(3, 6)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets, local = servers(session, folder, stack)
        for count in (TARGETS, 1):
            generate(targets[:count], tokens=64)  # first calls take longer
        generate([local], tokens=64)
        groups = {LOCAL: [local]} | {str(count): targets[:count] for count in range(1, TARGETS + 1)}
        steps = [(f"{name} targets, {turn}", name) for turn in range(repetitions) for name in groups]
        for name in session.each(steps):
            measured.rates.setdefault(name, []).append(generate(groups[name], tokens))
            if session.out_of_time():
                session.interrupted = True
                break


def servers(session: Session, folder: Path, stack: ExitStack) -> tuple[list[Server], Server]:
    """Start the drafters' server; return the targets' servers, and one that has its drafter beside itself."""
    costs = folder / "star.json"
    star = paper.star()
    passes = tuple((rows, tokens, star.verify - BESIDE) for rows in (1, 64) for tokens in (1, 2048))
    levels = tuple((rows, depth, depth * star.step) for rows in (1, 64) for depth in (1, 32))
    CostTable("star", "StarSD's Table 1", passes, draft={"draft_emulated": levels}).save(costs)
    names = [f"target{index}" for index in range(TARGETS)]
    keys = {name: secrets.token_hex(16) for name in names}
    callers = private(folder / "callers", "".join(f"{name} {key}\n" for name, key in keys.items()))

    def serve(name: str, models: str, drafters: str, more: str = "") -> Server:
        path = folder / f"{name}.toml"
        common = COMMON.format(costs=costs, depth=paper.DEPTH, drafters=drafters)
        path.write_text(f"models = [{models}]\n{common}\n[star]\n{more}\n")
        options = replace(session.wanted.options(path), log_file=folder / f"{name}.log")
        return stack.enter_context(session.server(options))

    own = '"draft_emulated"'
    one_at_a_time = f'callers = "{callers}"\njoin_rows = 1\nadmission = false'
    drafters = serve("drafters", f"{own}", own, one_at_a_time)
    targets = []
    for name, key in keys.items():
        secret = private(folder / f"{name}.secret", key)
        where = f'servers = ["draft_remote={drafters.grpc_url}/draft_emulated"]\nsecret = "{secret}"'
        targets.append(serve(name, f'{SHARED}, "draft_remote"', '"draft_remote"', where))
    return targets, serve("local", f"{SHARED}, {own}", own)


def generate(targets: Sequence[Server], tokens: int) -> float:
    """Return the tokens per second of all targets, one request at a time on each, while all of them decode."""

    def one(server: Server) -> float:
        with Client(server.grpc_url) as client:
            at: list[tuple[float, int]] = []
            for chunk in client.stream("Once", max_tokens=tokens, speculation=f"fixed:{paper.DEPTH}", timeout=300):
                at.append((time.monotonic(), len(chunk.tokens)))
        first, last = at[0][0], at[-1][0]
        return sum(count for _, count in at[1:]) / (last - first)

    with ThreadPoolExecutor(len(targets)) as threads:
        return sum(threads.map(one, targets))


def show(result: JsonDict, console: Console) -> None:
    """Show the table and the ratios."""
    rows = [[name, report.number(cell, 1)] for name, cell in result["servers"].items()]
    if rows:
        console.print(report.table("Real servers, emulated devices", ("targets", "tokens/s"), rows))
    for key in KEYS:
        console.print(f"{key} {report.number(result[key])}")
