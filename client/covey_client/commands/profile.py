"""`covey profile`: measure a running server's cost curves into a table that a profile's speculation.costs can name."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from covey_client.commands import flags
from covey_client.costs import curves
from covey_client.costs.bench import Bench
from covey_client.costs.samples import Samples
from covey_client.costs.shapes import Batch, Prefill, Shape, shapes
from covey_client.costs.table import CostTable
from covey_client.errors import InvalidRequest, ServerError
from covey_client.progress import LINE_SECONDS, Steps
from covey_client.reports import Facts, Reports

VISITS, ROUNDS = 2, 24  # of every shape, in another order each time; rounds in a visit
QUICK_VISITS, QUICK_ROUNDS = 1, 8
ALL = "all"


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="measure a server's cost curves",
        description="Measure what rounds of a running server take, by batch size and draft depth, and write a cost "
        "table and a picture of it. Nobody else should use the server meanwhile.",
    )
    parser.add_argument("name", help="the table's name in profiles/costs, or a path that ends in .json")
    parser.add_argument("--quick", action="store_true", help="the curves' ends alone, in some ten seconds")
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
    bench = Bench(flags.grpc_url(given), reports, facts)
    started = time.monotonic()
    try:
        bench.settle()
        samples, missed = measure(bench, shapes(facts, drafters, quick=given.quick), quick=given.quick)
    finally:
        bench.close()
    if not samples.plain:
        raise ServerError("no round had the shape that was asked for: is somebody else served?")
    table = with_constants(samples.table(path.stem, _origin(facts, time.monotonic() - started)), facts)
    table.save(path)
    picture = path.with_suffix(".png")
    curves.draw(table, picture)
    _print(table, missed)
    print(f"{path}\n{picture}")
    return 0


def with_constants(table: CostTable, facts: Facts) -> CostTable:
    """The table and the constants of policy adaserve that suit it, of the drafter that was measured first. Without
    the package covey, its recorded guesses, or a drafter there are none: what was measured is not lost for that."""
    try:
        from covey.emulated.budgets import searched
        from covey.errors import SettingError
    except ModuleNotFoundError:
        return table
    if not table.draft:
        return table
    try:
        found = searched(table, next(iter(table.draft)), facts.max_depth, facts.max_width)
    except SettingError as error:
        print(f"no constants of policy adaserve: {error}")
        return table
    return replace(table, adaserve=found)


def _path(name: str) -> Path:
    if Path(name).suffix == ".json":
        return Path(name)
    try:
        from covey.profile import costs_path
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"name: got {name!r}, allowed: a path that ends in .json where the package covey is not installed"
        ) from None
    return costs_path(name)


def measure(bench: Bench, wanted: Sequence[Shape], *, quick: bool) -> tuple[Samples, list[Shape]]:
    """Visit all shapes; those that never came about are returned too."""
    visits, rounds = (QUICK_VISITS, QUICK_ROUNDS) if quick else (VISITS, ROUNDS)
    samples, order = Samples(), random.Random(0)
    met: set[Shape] = set()
    with Steps(apart=LINE_SECONDS) as progress:
        task = progress.add_task("measuring", total=visits * len(wanted))
        for _ in range(visits):
            for shape in order.sample(wanted, len(wanted)):
                progress.update(task, description=described(shape))
                if _visit(bench, shape, rounds, samples):
                    met.add(shape)
                progress.advance(task)
    return samples, [shape for shape in wanted if shape not in met]


def _visit(bench: Bench, shape: Shape, wanted: int, samples: Samples) -> bool:
    """Whether there was anything to see."""
    if isinstance(shape, Batch):
        rounds = bench.decode(shape, wanted)
        samples.decoded(shape.rows, shape.depth, shape.drafter, rounds)
        return bool(rounds)
    if isinstance(shape, Prefill):
        rounds = bench.read(shape)
        samples.read(shape.tokens, rounds)
        return bool(rounds)
    found = bench.begin(shape)
    if found is not None:
        samples.began(shape.drafter, found.lag, found.rows, found.seconds)
    return found is not None


def described(shape: Shape) -> str:
    if isinstance(shape, Batch):
        return f"{shape.rows} rows, depth {shape.depth} {shape.drafter}".rstrip()
    if isinstance(shape, Prefill):
        return f"prompt of {shape.tokens}"
    return f"{shape.rows} rows, lag {shape.lag} {shape.drafter}"


def _drafters(wanted: Sequence[str], facts: Facts) -> Sequence[str]:
    if list(wanted) == [ALL]:
        return facts.drafters
    unknown = [name for name in wanted if name not in facts.drafters]
    if unknown:
        raise InvalidRequest(f"drafters: got {unknown[0]!r}, allowed: {', '.join(facts.drafters) or 'none there are'}")
    return wanted or facts.drafters[:1]


def _origin(facts: Facts, seconds: float) -> str:
    return (
        f"Measured by covey profile on {time.strftime('%Y-%m-%d')} in {seconds:.0f} s: {facts.model}, {facts.dtype}, "
        f"on {facts.device}, numerics {facts.numerics}, profile {facts.profile}. Medians; seconds as the round loop "
        "sees them, the way to the models and back included."
    )


def _print(table: CostTable, missed: Sequence[Shape]) -> None:
    """Whole rounds: at a glance, what a draft of each depth must bring."""
    overhead = dict(table.overhead)
    verify = {(rows, tokens): seconds for rows, tokens, seconds in table.verify}
    drafts = {"no drafter": tuple((rows, 0, 0.0) for rows, _ in table.plain), **table.draft}
    found = Table("rows", "depth", "drafter", "ms a round", box=None)
    for drafter, cells in drafts.items():
        for rows, depth, seconds in cells:
            whole = seconds + verify[rows, rows * (depth + 1)] + overhead[rows]
            found.add_row(str(rows), str(depth), drafter, f"{1000 * whole:.2f}")
    Console().print(found)
    if table.adaserve:
        print(f"policy adaserve: {', '.join(f'{key}={value}' for key, value in table.adaserve.items())}")
    if missed:
        print(f"not seen: {'; '.join(map(described, missed))}")
