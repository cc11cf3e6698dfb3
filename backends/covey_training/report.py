"""Shows what was measured: loss curves, a heat map and tables; measures nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

from covey_training.architecture import GENERAL, SPECIALISTS
from covey_training.evaluate import DEPTH, Report

__all__ = ["draw_acceptance_curve", "draw_heat_map", "draw_loss_curve", "print_report", "specialist_gain"]


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


def draw_heat_map(report: Report, path: Path) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 4.6), layout="constrained")
    for axis, title, table, top in (
        (axes[0], "Acceptance (1 − TV)", report.acceptance, 1.0),
        (axes[1], f"Accepted length at depth {DEPTH}", report.accepted_length, float(DEPTH)),
    ):
        domains, drafters = list(table), list(next(iter(table.values())))
        values = [[table[domain][name] for name in drafters] for domain in domains]
        axis.imshow(values, cmap="viridis", vmin=0.0, vmax=top, aspect="auto")
        axis.set_xticks(range(len(drafters)), [name.removeprefix("draft_") for name in drafters], rotation=30)
        axis.set_yticks(range(len(domains)), domains)
        axis.set(xlabel="drafter", title=title)
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                colour = "black" if value > 0.6 * top else "white"
                weight = "bold" if value == max(row) else "normal"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontweight=weight)
    save(figure, path)


def draw_loss_curve(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    training = [entry for entry in history if "loss" in entry]
    axis.plot([e["tokens"] / 1e6 for e in training], [e["loss"] for e in training], label="training", color="0.6")
    tokens_at = {entry["step"]: entry["tokens"] / 1e6 for entry in training}
    checks = [entry for entry in history if "validation" in entry and tokens_at]
    for domain in checks[0]["validation"] if checks else ():
        at = [max((t for step, t in tokens_at.items() if step <= c["step"]), default=0.0) for c in checks]
        axis.plot(at, [c["validation"][domain] for c in checks], marker="o", markersize=3, label=f"held out: {domain}")
    axis.set(xlabel="million tokens", ylabel="cross-entropy", title="Target", ylim=(1, 7))
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    save(figure, path)


def draw_acceptance_curve(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name in history[-1]["acceptance"] if history else ():
        seen = [(entry["step"], entry["acceptance"][name]) for entry in history if name in entry["acceptance"]]
        axis.plot(*zip(*seen), label=name)
    axis.set(xlabel="step", ylabel="acceptance on its lessons", title="Drafters")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
