"""The names on the wire: every tensor of a request and of a response, its type and whether it is a list.

They follow TensorRT-LLM's Triton models. The server's own table is tested against this one; nothing here needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

MODEL = "covey"
FINAL = "triton_final_response"  # response parameter of the last answer on a gRPC stream


@dataclass(frozen=True)
class Field:
    """One tensor: of shape [1], or [-1] where it is a list."""

    name: str
    dtype: str  # Triton's name of it
    many: bool = False


INPUTS = (
    Field("text_input", "BYTES"),
    Field("input_ids", "INT32", many=True),
    Field("max_tokens", "INT32"),
    Field("stream", "BOOL"),
    Field("temperature", "FP32"),
    Field("top_k", "INT32"),
    Field("top_p", "FP32"),
    Field("min_p", "FP32"),
    Field("repetition_penalty", "FP32"),
    Field("presence_penalty", "FP32"),
    Field("frequency_penalty", "FP32"),
    Field("min_tokens", "INT32"),
    Field("stop_words", "BYTES", many=True),
    Field("bad_words", "BYTES", many=True),
    Field("seed", "UINT64"),
    Field("end_id", "INT32"),
    Field("return_log_probs", "BOOL"),
    Field("exclude_input_in_output", "BOOL"),
    Field("num_draft_tokens", "INT32"),
    Field("priority", "INT32"),
    Field("num_prompt_tokens", "INT32"),
    Field("speculation", "BYTES"),
    Field("drafter", "BYTES"),
    Field("verification", "BYTES"),
    Field("tenant", "BYTES"),
)

OUTPUTS = (
    Field("text_output", "BYTES"),
    Field("output_ids", "INT32", many=True),
    Field("output_log_probs", "FP32", many=True),
    Field("finish_reason", "BYTES"),
    Field("used_seed", "UINT64"),
    Field("num_input_tokens", "INT32"),
    Field("num_output_tokens", "INT32"),
    Field("num_reused_tokens", "INT32"),
    Field("acceptance_rate", "FP32"),
    Field("total_accepted_draft_tokens", "INT32"),
    Field("total_draft_tokens", "INT32"),
    Field("mean_acceptance_length", "FP32"),
    Field("acceptance_histogram", "INT32", many=True),
    Field("emulated", "BOOL"),
)

INPUT_BY_NAME = {field.name: field for field in INPUTS}
OUTPUT_BY_NAME = {field.name: field for field in OUTPUTS}


class Settings(TypedDict, total=False):
    """What a caller may set, for type checkers; None is the same as leaving a setting out."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    min_tokens: int | None
    stop_words: Sequence[str] | None
    bad_words: Sequence[str] | None
    seed: int | None
    end_id: int | None
    return_log_probs: bool | None
    exclude_input_in_output: bool | None
    num_draft_tokens: int | None
    priority: int | None
    num_prompt_tokens: int | None
    speculation: str | None
    drafter: str | None
    verification: str | None
    tenant: str | None
