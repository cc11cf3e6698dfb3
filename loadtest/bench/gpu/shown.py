"""Shows the results of the bench `gpu` as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench import policies, report
from loadtest.bench.report import number


def tables(result: JsonDict) -> Iterator[Table]:
    for name, shown in SHOWN.items():
        if result.get(name):
            yield from shown(result[name])


def _ceilings(found: JsonDict) -> Iterator[Table]:
    copied, product = found.get("copy_bytes_per_s"), found.get("product_flops_per_s")
    rows = [
        ["device copy, read and written, TB/s", number(copied and copied / 1e12)],
        ["bfloat16 product, TFLOP/s", number(product and product / 1e12, 0)],
    ]
    yield report.table("Ceilings", ["", ""], rows)


def _plain(found: JsonDict) -> Iterator[Table]:
    rows = [
        [
            context,
            *(number(each[key], 3) for key in ("pass_ms", "token_ms")),
            *(number(each[key]) for key in ("pass_share_of_limit", "share_of_limit")),
        ]
        for context, each in found.items()
    ]
    columns = ["context", "pass, ms", "token, ms", "pass: share of limit", "token: share"]
    yield report.table("Plain decoding, one row", columns, rows)


def _overhead(found: JsonDict) -> Iterator[Table]:
    rounds = {(count, label): each for count, by_label in found.items() for label, each in by_label.items()}
    rows = [
        [
            f"{count}, {label}",
            *(number(each[key], 3) for key in ("round_ms", "device_ms", "outside_ms")),
        ]
        for (count, label), each in rounds.items()
    ]
    yield report.table("Rounds, ms", ["rows", "round", "passes on the device", "outside them"], rows)
    parts = {f"{count}, {label}": each["parts_ms"] for (count, label), each in rounds.items() if each["parts_ms"]}
    if parts:
        yield report.grid("Where a round's time goes on the host, ms", report.turned(parts), 3)


def _speculation(found: JsonDict) -> Iterator[Table]:
    yield policies.shown("Policies in process, tokens per second", found["points"])


SHOWN: Mapping[str, Callable[[JsonDict], Iterator[Table]]] = {
    "ceilings": _ceilings,
    "plain": _plain,
    "overhead": _overhead,
    "speculation": _speculation,
}
