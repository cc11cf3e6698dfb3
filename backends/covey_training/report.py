"""Shows what was measured in tables; measures nothing itself."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from covey_training.architecture import GENERAL, SPECIALISTS
from covey_training.evaluate import DEPTH, Report


def specialist_gain(report: Report) -> float:
    """Return the specialists' accepted length over the general drafter's, each on its own domain, averaged over all."""
    own = [(row[GENERAL], row.get(SPECIALISTS[domain])) for domain, row in report.accepted_length.items()]
    ratios = [specialist / general for general, specialist in own if specialist is not None]
    return sum(ratios) / len(ratios)


def print_report(report: Report, console: Console) -> None:
    drafters = list(next(iter(report.acceptance.values())))
    for title, table in (
        ("Acceptance, 1 - TV", report.acceptance),
        (f"Accepted length at depth {DEPTH}", report.accepted_length),
    ):
        shown = Table("domain", *(name.removeprefix("draft_") for name in drafters), title=title)
        for domain, row in table.items():
            best = max(row.values())
            shown.add_row(domain, *(f"[bold]{v:.3f}[/]" if v == best else f"{v:.3f}" for v in row.values()))
        console.print(shown)
    rest = Table("measure", "value", title="Target and steps")
    for domain, loss in report.cross_entropy.items():
        rest.add_row(f"cross-entropy, {domain}", f"{loss:.3f}")
    if report.copied is not None:
        rest.add_row("tokens of unchanged lines that greedy edits have in place", f"{report.copied:.3f}")
    for name, ratio in report.step_ratio.items():
        rest.add_row(f"step over the target's, {name}", f"{ratio:.3f}")
    if GENERAL in drafters:
        rest.add_row(f"specialists' accepted length over {GENERAL}'s", f"{specialist_gain(report):.3f}")
    console.print(rest)
