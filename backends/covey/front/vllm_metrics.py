"""Adds vLLM's names to the server's metrics where the meaning is the same."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from covey_client.status import parse
from covey_client.wire import MODEL

RENAMED = {
    "covey_requests_running": "num_requests_running",
    "covey_requests_waiting": "num_requests_waiting",
    "covey_preemptions_total": "num_preemptions_total",
    "covey_prefix_cache_hit_tokens_total": "prefix_cache_hits_total",
    "covey_prompt_tokens_total": "prompt_tokens_total",
    "covey_generation_tokens_total": "generation_tokens_total",
    "covey_time_to_first_token_seconds": "time_to_first_token_seconds",
    "covey_time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "covey_request_seconds": "e2e_request_latency_seconds",
    "covey_request_queue_seconds": "request_queue_time_seconds",
    "covey_request_prompt_tokens": "request_prompt_tokens",
    "covey_request_generation_tokens": "request_generation_tokens",
    "covey_spec_decode_num_drafts_total": "spec_decode_num_drafts_total",
    "covey_spec_decode_num_draft_tokens_total": "spec_decode_num_draft_tokens_total",
    "covey_spec_decode_num_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
    "covey_spec_decode_num_accepted_tokens_per_pos_total": "spec_decode_num_accepted_tokens_per_pos_total",
}
KEPT = ("le", "position")  # labels; values are summed over all others
REASONS = {"eos": "stop", "stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
_PART = re.compile(r"_(bucket|sum|count)$")  # of a histogram

Key = tuple[str, tuple[tuple[str, str], ...]]


def of(said: bytes) -> bytes:
    """Return the lines to append to the text of a metrics port."""
    found: dict[Key, float] = defaultdict(float)
    for key, value in _series(said.decode(errors="replace")):
        found[key] += value
    blocks = {state: found.pop(("kv", (("state", state),)), 0.0) for state in ("used", "free")}
    if sum(blocks.values()):
        found["kv_cache_usage_perc", ()] = blocks["used"] / sum(blocks.values())
    lines, typed = [], set()
    for (name, labels), value in found.items():
        family = _PART.sub("", name)
        if family not in typed:
            typed.add(family)
            lines.append(f"# HELP vllm:{family} As in vLLM")
            lines.append(f"# TYPE vllm:{family} {_kind(family, name)}")
        shown = "".join(f',{label}="{given}"' for label, given in labels)
        lines.append(f'vllm:{name}{{model_name="{MODEL}",engine="0"{shown}}} {value!r}')
    return "".join(f"{line}\n" for line in lines).encode()


def _kind(family: str, name: str) -> str:
    if family != name:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


def _series(text: str) -> Iterator[tuple[Key, float]]:
    for sample in parse(text):
        labels, value, name = sample.labels, sample.value, _PART.sub("", sample.name)
        if labels.get("model") != MODEL:
            continue
        if name in RENAMED:
            kept = tuple((label, labels[label]) for label in KEPT if label in labels)
            yield (RENAMED[name] + sample.name.removeprefix(name), kept), value
            if name == "covey_prompt_tokens_total":  # each of them is looked up in the cache
                yield ("prefix_cache_queries_total", kept), value
        elif name == "covey_inter_token_gaps_total":
            yield ("inter_token_latency_seconds_bucket", (("le", labels["at_most"]),)), value
            if labels["at_most"] == "+Inf":
                yield ("inter_token_latency_seconds_count", ()), value
        elif name == "covey_inter_token_gap_seconds_total":
            yield ("inter_token_latency_seconds_sum", ()), value
        elif name == "covey_requests_total" and labels["outcome"] in REASONS:
            yield ("request_success_total", (("finished_reason", REASONS[labels["outcome"]]),)), value
        elif name == "covey_kv_blocks":
            yield ("kv", (("state", labels["state"]),)), value
