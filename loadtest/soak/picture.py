"""What was seen, as a picture: each process relative to its size after the warm-up, and shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.soak.footprint import Sample
from loadtest.soak.verdict import LIMIT, Verdict

MIB = 1 << 20


def draw(samples: Sequence[Sample], verdict: Verdict, warm_up: float, title: str, path: Path) -> None:
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    above, below = figure.subplots(2, height_ratios=(3, 1), sharex=True)
    _resident(above, samples, verdict)
    minutes = [sample.at / 60 for sample in samples]
    below.plot(minutes, [sample.shared / MIB for sample in samples], color="#1f5fa8", drawstyle="steps-post")
    below.set(ylabel="shared memory, MiB", xlabel="time under load, minutes", xlim=(0, max(minutes)))
    below.set_ylim(bottom=0)
    for axes in (above, below):
        axes.axvspan(0, warm_up / 60, color="#888888", alpha=0.15, linewidth=0)
        axes.grid(visible=True, alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=110)


def _resident(axes: Axes, samples: Sequence[Sample], verdict: Verdict) -> None:
    for index, trend in enumerate(verdict.trends):
        if trend.ended:
            continue
        minutes = [sample.at / 60 for sample in samples]
        change = [100 * (sample.resident[trend.name] / trend.first - 1) for sample in samples]
        label = f"{trend.name}, {trend.first / MIB:.0f} MiB, {100 * trend.growth:+.2f} %"
        axes.plot(minutes, change, label=label, linewidth=1.2, color=f"C{index % 10}", linestyle=("-", "--")[index > 9])
    axes.axhline(100 * LIMIT, color="#a83232", linewidth=1, linestyle=":")
    axes.set_ylabel("resident memory, % of its size after the warm-up (grey)")
    axes.set_ylim(-5, 5)
    axes.legend(fontsize=7, ncols=2, frameon=False)
