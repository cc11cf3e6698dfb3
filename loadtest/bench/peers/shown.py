"""Makes tables of the bench `peers`. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.bench import report
from loadtest.bench.peers.measured import STAGES

RATIOS = {  # key -> what it is
    "best_over_openvino": "policy covey over OpenVINO's best",
    "best_over_openvino_t1": "... temperature 1, over its plain decoding",
    "over_lossy_drafts_of_openvino_t1": "... over its drafts, which change what is drawn",
    "best_over_vllm": "policy covey over vLLM's best",
    "best_over_vllm_t1": "... temperature 1",
    "limit_share": "the machine's limit over a plain pass",
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


def _times(by_stage: Mapping[str, float], stage: str) -> str:
    return report.number(by_stage[stage] / min(by_stage["reading"], by_stage["products"]))
