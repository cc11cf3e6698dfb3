"""Measures one drafter for several targets, in real time: three servers with an emulated target each and a fourth with
their emulated drafter. Devices sleep, so that what is measured beside them is the way through Triton, gRPC and the
service.

What is measured with one target (t_s, t_v and t_c together) predicts two and three. `remote_over_local` is StarSD's
Figure 4.

scaling_n3            tokens/s of three servers over one's
predicted_n2, _n3     tokens/s over what follows from one target's times
remote_over_local     tokens/s of one target with its drafter elsewhere over one that has it beside itself
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
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
from covey_client.star.model import Star
from loadtest.attack.far import private
from loadtest.bench import report, scrape
from loadtest.bench.session import QUICK, Session

KEYS = ("scaling_n3", "predicted_n2", "predicted_n3", "remote_over_local")
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
state = ""
max_depth = {depth}
drafters = [{drafters}]
draft_deadline_ms = 5000
"""


@dataclass
class StarRates:
    """Holds tokens per second by number of targets, and of one with its drafter beside it; one more for each
    repetition."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    predicted: dict[str, list[float]] = field(default_factory=dict)
    step_ms: list[float] = field(default_factory=list)
    away_ms: list[float] = field(default_factory=list)

    def summary(self) -> JsonDict:
        found = {name: median(values) for name, values in self.rates.items()}
        ratios = {name: median(values) for name, values in self.predicted.items()}
        one, three, local = (found.get(name) for name in ("1", "3", LOCAL))
        return {
            "servers": report.spreads(self.rates),
            "servers_step_ms": self.step_ms,
            "servers_away_ms": self.away_ms,
            "scaling_n3": three / one if one and three else None,
            "predicted_n2": ratios.get("2"),
            "predicted_n3": ratios.get("3"),
            "remote_over_local": one / local if one and local else None,
        }


def run(session: Session) -> None:
    measured = StarRates()
    session.summarise = measured.summary
    tokens = QUICK_TOKENS if session.wanted.size == QUICK else TOKENS
    repetitions = session.repetitions(3, 6)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets, drafters, local = servers(session, folder, stack)
        for count in (TARGETS, 1):
            generate(targets[:count], tokens=64)  # first calls take longer
        generate([local], tokens=64)
        groups = {LOCAL: [local]} | {str(count): targets[:count] for count in range(1, TARGETS + 1)}
        steps = [(f"{name} targets, {turn}", name) for turn in range(repetitions) for name in groups]
        star: Star | None = None
        for name in session.each(steps):
            before = figures(drafters)
            rate = generate(groups[name], tokens)
            measured.rates.setdefault(name, []).append(rate)
            if name == "1":
                star = seen(before, figures(drafters), rate, tokens)
                measured.step_ms.append(1000 * star.step)
                measured.away_ms.append(1000 * star.away)
            elif star is not None and name != LOCAL:
                expected = star.point(int(name)).whole / star.point(1).whole * measured.rates["1"][-1]
                measured.predicted.setdefault(name, []).append(rate / expected)
            if session.out_of_time():
                session.interrupted = True
                break


def servers(session: Session, folder: Path, stack: ExitStack) -> tuple[list[Server], Server, Server]:
    """Start the targets' servers, the drafters', and one that has its drafter beside itself."""
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
    return targets, drafters, serve("local", f"{SHARED}, {own}", own)


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


def figures(server: Server) -> dict[str, float]:
    """Return the totals of the drafters' service."""
    found: dict[str, float] = {}
    for sample in scrape.read(server.metrics_url).samples:
        prefix, _, name = sample.name.partition("covey_draft_")
        if not prefix and (name != "calls_total" or sample.labels["outcome"] == "drafted"):
            found[name] = found.get(name, 0.0) + sample.value
    return found


def seen(before: Mapping[str, float], after: Mapping[str, float], rate: float, tokens: int) -> Star:
    """Return t_s and Z of one target alone: from a call to the next its tokens take as long as its rate says, and all
    of that which the drafter does not work it is away."""
    names = ("calls_total", "levels_total", "service_seconds_total")
    calls, levels, service = (after[name] - before.get(name, 0.0) for name in names)
    whole = tokens / calls / rate
    step, away = service / levels, max(1e-6, whole - service / calls)
    return Star(step, away, 0.0, paper.star().acceptance, round(levels / calls), plain=1.0)


def show(result: JsonDict, console: Console) -> None:
    """Show the table and the ratios."""
    rows = [[name, report.number(cell, 1)] for name, cell in result["servers"].items()]
    if rows:
        console.print(report.table("Real servers, emulated devices", ("targets", "tokens/s"), rows))
    for key in KEYS:
        console.print(f"{key} {report.number(result[key])}")
