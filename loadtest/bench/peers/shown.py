"""Makes tables and pictures of the bench `peers`. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench import report
from loadtest.bench.peers.asked import OPENVINO, VLLM, named
from loadtest.bench.peers.measured import ALONE, FAST, SERVER_COVEY, SERVER_OFF, STAGES, TEMPERATURES

RATIOS = {  # key -> what it is
    "best_over_openvino": "policy covey over OpenVINO's best",
    "best_over_openvino_t1": "... temperature 1, over its plain decoding",
    "over_lossy_drafts_of_openvino_t1": "... over its drafts, which change what is drawn",
    "best_over_vllm": "policy covey over vLLM's best",
    "best_over_vllm_t1": "... temperature 1",
    "limit_share": "the machine's limit over a plain pass",
    "limit_share_fast": "... in mode fast",
    "pass_in_server_over_alone": "a pass in the server over alone",
}
PLAIN = {"plain_over_openvino": "OpenVINO's", "plain_over_vllm": "vLLM's"}


def tables(result: JsonDict) -> Iterator[Table]:
    """Yield a table of everything that was measured."""
    rates = result["tokens_per_second"]
    columns = sorted({callers for by_name in rates.values() for by in by_name.values() for callers in by}, key=int)
    for label, by_name in rates.items():
        rows = [[name, *(report.number(by.get(callers), 0) for callers in columns)] for name, by in by_name.items()]
        if rows:
            yield report.table(f"Tokens per second, {label}, by callers", ["", *columns], rows)
    rows = [
        [f"plain decoding over {whose}: {ours}", *(report.between(by.get(callers)) for callers in columns)]
        for key, whose in PLAIN.items()
        for ours, by in result[key].items()
    ]
    rows += [[said, *(report.between(result[key].get(callers)) for callers in columns)] for key, said in RATIOS.items()]
    for label, by in result["bound"].items():
        for key in ("over_plain", "over_openvino"):
            values = (report.number((by.get(callers) or {}).get(key)) for callers in columns)
            rows.append([f"bound by acceptance and costs, {label}: {key.replace('_', ' ')}", *values])
    if columns:
        yield report.table("Ratios of turns, by callers: median (95 %)", ["", *columns], rows)
    falls = result["waterfall_ms"]
    if falls:
        rows = [
            [said, *(cell for by in falls.values() for cell in (report.number(by[stage]), _times(by, stage)))]
            for stage, said in STAGES.items()
        ]
        heads = [head for callers in falls for head in (f"at {callers}, ms", "of limit")]
        yield report.table("From the limit to a token at the client", ["", *heads], rows)
    if result.get("texts"):
        rows = [
            [
                name,
                *(
                    (found["error"], "")
                    if "error" in found
                    else (f"{found['same']} of {found['texts']}", str(found["first_difference"]))
                ),
            ]
            for name, found in result["texts"].items()
        ]
        yield report.table("Greedy texts in float32, beside Covey's", ["", "the same", "first difference at"], rows)


def pictures(result: JsonDict, picture: Path) -> None:
    """Draw throughput, and beside it, in a file of its own, the waterfall."""
    panels = [
        report.Panel(label, "callers", "tokens per second", lines, log_x=True)
        for label, by_name in result["tokens_per_second"].items()
        if label in TEMPERATURES and (lines := _lines(by_name))
    ]
    if panels:
        report.panels(picture, "Covey beside others, medians of turns", panels)
    if result["waterfall_ms"]:
        _waterfall(picture.with_stem(f"{picture.stem}-waterfall"), result["waterfall_ms"])


def _lines(by_name: Mapping[str, JsonDict]) -> dict[str, list[tuple[float, float]]]:
    """Return every system's plain decoding and the highest that it reaches with drafts."""
    found = {name: report.line(by_name[name]) for name in (ALONE, FAST, SERVER_OFF, SERVER_COVEY) if name in by_name}
    for peer in (OPENVINO, VLLM):
        plain = named(peer, 0)
        if plain in by_name:
            found[plain] = report.line(by_name[plain])
        drafting = [
            dict(report.line(by)) for name, by in by_name.items() if name.startswith(f"{peer} ") and name != plain
        ]
        if drafting:
            callers = sorted({x for points in drafting for x in points})
            found[f"{peer}, best with drafts"] = [(x, max(p[x] for p in drafting if x in p)) for x in callers]
    return {name: points for name, points in found.items() if points}


def _waterfall(path: Path, falls: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a bar for every stage, from where the stage before it ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(
        1, len(falls), figsize=(5.5 * len(falls), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for plot, (callers, by_stage) in zip(plots.flat, falls.items()):
        reached = 0.0
        for place, stage in enumerate(STAGES):
            ends = by_stage[stage]
            colour = report.COLOURS[0] if ends >= reached else report.COLOURS[2]
            plot.barh(place, ends - reached, left=reached, color=colour)
            plot.annotate(
                f"{ends:.2f}", (max(ends, reached), place), xytext=(3, 0), textcoords="offset points", va="center"
            )
            reached = ends
        plot.set(title=f"{callers} callers" if callers != "1" else "one caller", xlabel="ms a round")
        plot.margins(x=0.15)
        plot.grid(alpha=0.3, axis="x")
    plots.flat[0].set_yticks(range(len(STAGES)), list(STAGES.values()))
    plots.flat[0].invert_yaxis()
    figure.suptitle("From the machine's limit to a token at the client, medians of turns")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _times(by_stage: Mapping[str, float], stage: str) -> str:
    return report.number(by_stage[stage] / min(by_stage["reading"], by_stage["products"]))
