"""Shows what the bench `gpu` found, as tables; each number is beside what it was to reach on an H200."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench import policies, report
from loadtest.bench.report import number

SHARE, OVER_STATIC, MOVES, CHANGED = 0.75, 0.98, 0.7, 0
OUTSIDE_MS = {"1": 0.5, "64": 1.5}
BARS: JsonDict = {
    "plain: share_of_limit": SHARE,
    "speculation: covey_over_best_static": OVER_STATIC,
    "moves: over_copy": MOVES,
    "exactness: changed requests in mode invariant": CHANGED,
    "overhead: outside_ms, at most": OUTSIDE_MS,
}


def tables(result: JsonDict) -> Iterator[Table]:
    for name, shown in SHOWN.items():
        if result.get(name):
            yield from shown(result[name])


def judged(value: float | None, bar: float | None, *, most: bool = False) -> str:
    """Say whether a number reached its bar; a dash where there is no number or no bar."""
    if value is None or bar is None:
        return "-"
    met = value <= bar if most else value >= bar
    return f"{'met' if met else 'MISSED'} ({'at most' if most else 'at least'} {bar:g})"


def _ceilings(found: JsonDict) -> Iterator[Table]:
    copied, product = found.get("copy_bytes_per_s"), found.get("product_flops_per_s")
    rows = [
        ["device copy, read and written, TB/s", number(copied and copied / 1e12)],
        ["bfloat16 product, TFLOP/s", number(product and product / 1e12, 0)],
    ]
    yield report.table("Ceilings", ["", ""], rows)


def _draws(found: JsonDict) -> Iterator[Table]:
    rows = [
        [name, *(number(each[key], 3) for key in ("kernels_ms", "call_ms", "host_ms"))] for name, each in found.items()
    ]
    yield report.table("Draws of so many rows, ms", ["rows, temperature", "kernels alone", "call", "on the host"], rows)


def _moves(found: JsonDict) -> Iterator[Table]:
    rows = []
    for count, each in found.items():
        over, speed, call = ((each or {}).get(key) for key in ("over_copy", "bytes_per_s", "call_ms"))
        rows.append([count, number(speed and speed / 1e12), number(over), number(call, 3), judged(over, MOVES)])
    yield report.table("Blocks moved", ["blocks", "TB/s", "over a plain copy", "call, ms", "bar"], rows)


def _attention(found: JsonDict) -> Iterator[Table]:
    rows = [
        [case, number(each["share_of_copy"]), ", ".join(f"{k} {v}" for k, v in each["launched_as"].items())]
        for case, each in found.items()
        if each
    ]
    yield report.table("Attention over all layers", ["rows x tokens at context", "share of copy", "launched as"], rows)


def _plain(found: JsonDict) -> Iterator[Table]:
    rows = [
        [
            context,
            *(number(each[key], 3) for key in ("pass_ms", "forward_ms", "token_ms")),
            *(number(each[key]) for key in ("pass_share_of_limit", "share_of_limit")),
            judged(each["share_of_limit"], SHARE),
        ]
        for context, each in found.items()
    ]
    columns = ["context", "pass, ms", "forward, ms", "token, ms", "pass: share of limit", "token: share", "bar"]
    yield report.table("Plain decoding, one row", columns, rows)


def _overhead(found: JsonDict) -> Iterator[Table]:
    rounds = {(count, label): each for count, by_label in found.items() for label, each in by_label.items()}
    rows = [
        [
            f"{count}, {label}",
            *(number(each[key], 3) for key in ("round_ms", "device_ms", "outside_ms")),
            judged(each["outside_ms"], OUTSIDE_MS.get(count), most=True),
        ]
        for (count, label), each in rounds.items()
    ]
    yield report.table("Rounds, ms", ["rows", "round", "passes on the device", "outside them", "bar"], rows)
    parts = {f"{count}, {label}": each["parts_ms"] for (count, label), each in rounds.items() if each["parts_ms"]}
    if parts:
        yield report.grid("Where a round's time goes on the host, ms", report.turned(parts), 3)


def _speculation(found: JsonDict) -> Iterator[Table]:
    points = found["points"]
    yield policies.shown("Policies in process, tokens per second", points)
    bar = OVER_STATIC if found["on_gpu"] else None
    yield report.table(
        "covey over best static",
        ["at", "bar"],
        [[c, judged(p["covey_over_best_static"], bar)] for c, p in points.items()],
    )


def _exactness(found: JsonDict) -> Iterator[Table]:
    rows = [
        [f"{mode}, temperature {temperature}, {label}", f"{count} of {each['requests']}"]
        for mode, by_mode in found.items()
        for temperature, each in by_mode.get("texts", {}).items()
        for label, count in each["changed"].items()
    ]
    rows += [[f"{mode} is absent: {each['absent']}"[:90], ""] for mode, each in found.items() if "absent" in each]
    invariant = found.get("invariant", {})
    exact = [each["changed"] for each in invariant.get("texts", {}).values()]
    if exact:
        most = max(count for counts in exact for count in counts.values())
        rows.append(["bar of invariant", judged(most, CHANGED, most=True)])
    yield report.table("Requests whose tokens are others than alone", ["", ""], rows)
    passes = {mode: each["pass_ms"] for mode, each in found.items() if "pass_ms" in each}
    price = invariant.get("over_fast", {})
    shapes = [
        [shape, *(number(by_shape[shape], 3) for by_shape in passes.values()), number(price.get(shape))]
        for shape in next(iter(passes.values()), ())
    ]
    yield report.table("Passes of rows x tokens, ms", ["", *passes, "invariant over fast"], shapes)


SHOWN: Mapping[str, Callable[[JsonDict], Iterator[Table]]] = {
    "ceilings": _ceilings,
    "draws": _draws,
    "moves": _moves,
    "attention": _attention,
    "plain": _plain,
    "overhead": _overhead,
    "exactness": _exactness,
    "speculation": _speculation,
}
