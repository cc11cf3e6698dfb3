"""The tensors of the public models: the arrays of a response, and names that clients do not use. Knows no Triton."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from covey.text.streaming import Chunk

# Only between the ensemble's steps: its tokenizer asks for an output that its detokenizer needs.
ASKS_FOR_STATE = "detokenized_elsewhere"
STATE = "detokenizer_state"
# A question about the server in place of a generation, and the answer (`covey.tritonio.reports`).
INSPECT = "inspect"
REPORT = "report"


def outputs(chunk: Chunk, *, whole: bool = True) -> dict[str, Any]:
    """Return the chunk as the arrays of a response, by the names of `covey_client.wire.OUTPUTS`; without `whole`, those
    of `EARLY` that are not empty."""
    arrays = {
        "text_output": np.array([chunk.text.encode()], np.object_),
        "output_ids": chunk.ids,
        "finish_reason": np.array([chunk.finish.value.encode() if chunk.finish else b""], np.object_),
        "used_seed": np.array([chunk.seed], np.uint64),
        "emulated": np.array([chunk.emulated], np.bool_),
    }
    scores = {
        "output_log_probs": chunk.logprobs,
        "output_top_ids": chunk.top.ids.reshape(-1),
        "output_top_log_probs": chunk.top.logprobs.reshape(-1),
        "prompt_ids": chunk.prompt_ids,
        "prompt_log_probs": chunk.prompt_scores.logprobs,
        "prompt_top_ids": chunk.prompt_scores.top.ids.reshape(-1),
        "prompt_top_log_probs": chunk.prompt_scores.top.logprobs.reshape(-1),
    }
    if not whole:
        return arrays | {name: array for name, array in scores.items() if len(array)}
    rate = chunk.accepted / chunk.drafted if chunk.drafted else 0.0
    drafts = sum(chunk.acceptance)
    arrays |= {
        **scores,
        "num_input_tokens": np.array([chunk.num_input], np.int32),
        "num_output_tokens": np.array([chunk.num_output], np.int32),
        "num_reused_tokens": np.array([chunk.reused], np.int32),
        "acceptance_rate": np.array([rate], np.float32),
        "total_accepted_draft_tokens": np.array([chunk.accepted], np.int32),
        "total_draft_tokens": np.array([chunk.drafted], np.int32),
        "mean_acceptance_length": np.array([1 + chunk.accepted / drafts if drafts else 0.0], np.float32),
        "acceptance_histogram": np.array(chunk.acceptance, np.int32),
        "drafters": np.array([name.encode() for name, _, _ in chunk.drafters], np.object_),
        "draft_tokens_by_drafter": np.array([drafted for _, drafted, _ in chunk.drafters], np.int32),
        "accepted_draft_tokens_by_drafter": np.array([accepted for _, _, accepted in chunk.drafters], np.int32),
        "measured_ttft_ms": np.array([1000 * (chunk.ttft or 0.0)], np.float32),
        "measured_tpot_ms": np.array([1000 * (chunk.tpot or 0.0)], np.float32),
        "slo_attainment": np.array([chunk.attainment.encode()], np.object_),
    }
    if chunk.state is not None:
        arrays[STATE] = np.array([json.dumps(asdict(chunk.state)).encode()], np.object_)
    return arrays
