"""Draws throughput over the number of targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from covey_client.star.model import Star, StarPoint


def draw(star: Star, points: Sequence[StarPoint], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (whole, each) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    counts = [point.targets for point in points]
    figure.suptitle("One drafter, one call at a time, by the formula")
    whole.plot(counts, [point.whole for point in points], marker="o")
    whole.set_title("all targets", fontsize=10)
    each.plot(counts, [point.each for point in points], marker="o", label="with the drafter")
    each.axhline(1 / star.plain, color="grey", linestyle=":", label="decoding plainly")
    each.set_title("one target", fontsize=10)
    for plot in (whole, each):
        for count, name, style in ((star.full, "N_full", "--"), (star.most, "N_max", "-")):
            if count in counts:
                plot.axvline(count, color="grey", linestyle=style, alpha=0.6, label=name)
        plot.set_ylim(bottom=0)
        plot.set_xlabel("targets")
        plot.set_ylabel("tokens/s")
        plot.grid(alpha=0.3)
        plot.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
