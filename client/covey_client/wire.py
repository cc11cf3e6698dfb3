"""The public interface: every field of a request and of a response, declared once.

The server also reads these tables: it imports the client's package, which imports nothing heavy, and the client never
imports the server's. From them `make generate` writes the models' configurations, `Settings` below and docs/api.md.
Names follow TensorRT-LLM's Triton models. Figures of a request's drafts that these lack follow vLLM's responses.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

MODEL = "covey"
MAX_DRAFT_TOKENS = 32
MAX_TOP_LOGPROBS = 20
MAX_GRAMMAR_BYTES = 65536
MAX_BIASES = 1024  # tokens with a bias in one request
BAN = -100.0  # the bias with which a token cannot be drawn

FORMATS = {"INT32": "i", "UINT64": "Q", "FP32": "f", "BOOL": "?"}  # of `struct`, by Triton's names of datatypes
WHOLE = {"INT32": (-(1 << 31), (1 << 31) - 1), "UINT64": (0, (1 << 64) - 1)}  # the lowest and the highest of each

# The class whose attribute is the field's value unchanged: on the server for a request's, in the client for a
# response's.
SAMPLING, REQUEST, DELIVERY = (
    "covey.contracts.types.Sampling",
    "covey.contracts.types.Request",
    "covey.tritonio.fields.Wanted",
)
CHUNK, USAGE = "covey_client.response.Chunk", "covey_client.response.Usage"
OWN = ""  # none: special code in `covey.tritonio.fields` reads the field


@dataclass(frozen=True)
class Field:
    """A tensor of a request: of shape [1], or [-1] if it is a list. A number lies from `low` to `high`. A text is one
    of `choices`, or has at most `high` bytes. A flag with a `high` of 0 cannot be set. The parser checks limits that
    depend on the request or the server."""

    name: str
    dtype: str  # Triton's name of it
    part: str
    doc: str
    default: bool | float | str | None = None  # None: `doc` says what holds without it
    low: float = 0
    high: float = math.inf
    above: bool = False  # `low` itself is not allowed
    choices: tuple[str, ...] = ()
    many: bool = False
    named: str = ""  # the attribute's name, if it differs

    @property
    def attribute(self) -> str:
        return self.named or self.name

    @property
    def is_number(self) -> bool:
        return self.dtype in ("INT32", "UINT64", "FP32")


# More fields that TensorRT-LLM's clients send, accepted only with values that ask for nothing. Server and front check
# them by this table and ignore them.
NEUTRAL = (
    Field("pad_id", "INT32", OWN, "no effect: nothing is padded", low=-1),
    Field("beam_width", "INT32", OWN, "one beam", 1, low=1, high=1),
    Field(
        "num_return_sequences", "INT32", OWN, "one answer; ask again for more, the prompt has its KV", 1, low=1, high=1
    ),
    Field("length_penalty", "FP32", OWN, "no effect: it weighs beams", 0.0, low=-100.0, high=100.0),
    Field("return_context_logits", "BOOL", OWN, "not to be had", False, high=0),
    Field("return_generation_logits", "BOOL", OWN, "not to be had; `top_logprobs` is", False, high=0),
    Field("return_perf_metrics", "BOOL", OWN, "not to be had; the last response has its times", False, high=0),
)

INPUTS = (
    Field("text_input", "BYTES", OWN, "the prompt as text; this or `input_ids`"),
    Field("input_ids", "INT32", OWN, "the prompt as token ids; this or `text_input`", many=True),
    Field(
        "max_tokens",
        "INT32",
        OWN,
        "most tokens of output; else `limits.max_tokens`, 256, or what the context leaves; 0 together "
        "with `return_prompt_log_probs` alone",
        high=1 << 30,
    ),
    Field("stream", "BOOL", DELIVERY, "send tokens as they come, not the whole answer at its end", False),
    Field("temperature", "FP32", SAMPLING, "how evenly tokens are drawn; below 1e-5 is greedy", 0.0, high=100.0),
    Field("top_k", "INT32", SAMPLING, "only this number of the likeliest tokens; 0 is all", 0, high=1 << 30),
    Field("top_p", "FP32", SAMPLING, "only the likeliest tokens up to this sum of chances", 1.0, high=1.0, above=True),
    Field("min_p", "FP32", SAMPLING, "only tokens of at least this share of the likeliest's chance", 0.0, high=1.0),
    # dividing by a smaller one overflows logits
    Field("repetition_penalty", "FP32", SAMPLING, "on prompt and output, as Hugging Face's", 1.0, low=0.01, high=100.0),
    Field("presence_penalty", "FP32", SAMPLING, "on tokens of the output, as OpenAI's", 0.0, low=-100.0, high=100.0),
    Field("frequency_penalty", "FP32", SAMPLING, "on them by their count, as OpenAI's", 0.0, low=-100.0, high=100.0),
    Field("min_tokens", "INT32", OWN, "no end token before this many; at most `max_tokens` plus received tokens", 0),
    Field("stop_words", "BYTES", OWN, "texts that end the output, and are no part of it", many=True),
    Field("bad_words", "BYTES", OWN, "texts that are never produced", many=True),
    Field("logit_bias_ids", "INT32", OWN, "token ids whose logits get a bias", many=True),
    Field(
        "logit_bias",
        "FP32",
        OWN,
        f"the bias of each of them, {BAN:.0f} to 100; {BAN:.0f} bans",
        low=BAN,
        high=100.0,
        many=True,
    ),
    Field(
        "grammar_json",
        "BYTES",
        OWN,
        "a JSON schema that the output has to fit; `{}`: any JSON",
        "",
        high=MAX_GRAMMAR_BYTES,
    ),
    Field(
        "grammar_regex",
        "BYTES",
        OWN,
        "a regular expression that the output has to match as a whole",
        "",
        high=MAX_GRAMMAR_BYTES,
    ),
    Field(
        "grammar_lark",
        "BYTES",
        OWN,
        "a grammar in llguidance's form of Lark that the output has to fit as a whole",
        "",
        high=MAX_GRAMMAR_BYTES,
    ),
    Field("seed", "UINT64", OWN, "of every draw; without one the server draws it: `used_seed`", high=(1 << 64) - 1),
    Field("end_id", "INT32", OWN, "the token that ends the output; -1 is the model's own", -1, low=-1),
    Field("return_log_probs", "BOOL", SAMPLING, "also answer with `output_log_probs`", False, named="logprobs"),
    Field(
        "top_logprobs",
        "INT32",
        SAMPLING,
        "also answer with this number of the likeliest tokens at each place",
        0,
        high=MAX_TOP_LOGPROBS,
    ),
    Field(
        "return_prompt_log_probs",
        "BOOL",
        SAMPLING,
        "also answer with the prompt's `prompt_log_probs`; none of its KV is reused",
        False,
        named="prompt_logprobs",
    ),
    Field("exclude_input_in_output", "BOOL", OWN, "leave the prompt out of `text_output`", True),
    Field("num_draft_tokens", "INT32", OWN, "0 is `speculation` `off`, k is `fixed:k`", high=MAX_DRAFT_TOKENS),
    Field("num_prompt_tokens", "INT32", OWN, "how many ids are the original prompt; without it all", low=1),
    Field("priority", "INT32", REQUEST, "higher goes first", 0, low=-1000, high=1000),
    Field("speculation", "BYTES", OWN, "`auto`, `off` or `fixed:k`, which is refused without drafters", "auto"),
    Field("drafter", "BYTES", OWN, "the drafter's name; without it `speculation.drafter_policy` chooses", ""),
    Field("verification", "BYTES", OWN, "how drafts are verified", "coupled", choices=("coupled", "rejection")),
    Field("slo_class", "BYTES", OWN, "a latency class of the profile: `interactive`, `chat`, `batch`, or its own", ""),
    Field("slo_ttft_ms", "FP32", OWN, "to the first token, instead of its class's time", low=0.01, high=600_000),
    Field("slo_tpot_ms", "FP32", OWN, "for each later token on average, likewise", low=0.01, high=600_000),
    Field("tenant", "BYTES", REQUEST, "whose request it is: tenants share no KV", "", high=256),
    *NEUTRAL,
)

OUTPUTS = (
    Field("text_output", "BYTES", CHUNK, "the text since the last response", named="text"),
    Field("output_ids", "INT32", CHUNK, "its tokens", many=True, named="tokens"),
    Field(
        "output_log_probs",
        "FP32",
        CHUNK,
        "their log-probabilities, with `return_log_probs`",
        many=True,
        named="log_probs",
    ),
    Field("output_top_ids", "INT32", CHUNK, "the `top_logprobs` likeliest, token by token", many=True, named="top_ids"),
    Field(
        "output_top_log_probs",
        "FP32",
        CHUNK,
        "their log-probabilities, the model's own as those of `output_log_probs`, at least -9999",
        many=True,
        named="top_log_probs",
    ),
    Field(
        "prompt_ids",
        "INT32",
        CHUNK,
        "with `return_prompt_log_probs`: the prompt's tokens, in the first response",
        many=True,
    ),
    Field("prompt_log_probs", "FP32", CHUNK, "their log-probabilities, from the second token on", many=True),
    Field("prompt_top_ids", "INT32", CHUNK, "the `top_logprobs` likeliest at the place of each of these", many=True),
    Field("prompt_top_log_probs", "FP32", CHUNK, "their log-probabilities", many=True),
    Field("finish_reason", "BYTES", CHUNK, "empty until the last response: `eos`, `stop` or `length`"),
    Field("used_seed", "UINT64", CHUNK, "gives the same answer again, also where the server drew it", named="seed"),
    Field("num_input_tokens", "INT32", USAGE, "tokens of the prompt", named="input_tokens"),
    Field("num_output_tokens", "INT32", USAGE, "tokens of output so far", named="output_tokens"),
    Field("num_reused_tokens", "INT32", USAGE, "tokens of the prompt that had KV already", named="reused_tokens"),
    Field("acceptance_rate", "FP32", USAGE, "accepted ones of the drafted tokens so far"),
    Field("total_accepted_draft_tokens", "INT32", USAGE, "their number", named="accepted_draft_tokens"),
    Field("total_draft_tokens", "INT32", USAGE, "drafted tokens so far", named="draft_tokens"),
    Field("mean_acceptance_length", "FP32", USAGE, "tokens a draft brought, with the target's own; 0 without drafts"),
    Field("acceptance_histogram", "INT32", USAGE, "place j: drafts of which j tokens were accepted", many=True),
    Field("drafters", "BYTES", USAGE, "who drafted, in the order in which they first did", many=True),
    Field("draft_tokens_by_drafter", "INT32", USAGE, "drafted tokens of each of them", many=True),
    Field("accepted_draft_tokens_by_drafter", "INT32", USAGE, "accepted tokens of each of them", many=True),
    Field(
        "measured_ttft_ms",
        "FP32",
        USAGE,
        "from arrival to first token, on the server; 0 before",
        named="ttft_ms",
    ),
    Field("measured_tpot_ms", "FP32", USAGE, "mean time of later tokens so far; 0 before the second", named="tpot_ms"),
    Field("slo_attainment", "BYTES", CHUNK, "at the end, with an objective: `met`, `missed`, `unknown` (no baseline)"),
    Field("emulated", "BOOL", CHUNK, "no model made the text: an emulated device did"),
)

INPUT_BY_NAME = {field.name: field for field in INPUTS}
OUTPUT_BY_NAME = {field.name: field for field in OUTPUTS}
# The outputs of a response before the last, less empty lists: each one costs both sides time. A client that names some
# outputs gets those in every response. To Triton, one that names none is one that names all.
EARLY = tuple(field.name for field in OUTPUTS if field.part == CHUNK and field.name != "slo_attainment")
PROMPT = ("text_input", "input_ids")


def unknown(name: str) -> str:
    """Return what is allowed instead of an unknown field: the nearest names."""
    near = difflib.get_close_matches(name[:50], INPUT_BY_NAME, 3, 0.5)
    return (
        f"no such setting; near it: {', '.join(near)}" if near else "no such setting; the model's metadata has them all"
    )


class Settings(TypedDict, total=False):
    """The settings that a caller may give, for type checkers; None is the same as leaving a setting out."""

    # generated: settings
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
    logit_bias_ids: Sequence[int] | None
    logit_bias: Sequence[float] | None
    grammar_json: str | None
    grammar_regex: str | None
    grammar_lark: str | None
    seed: int | None
    end_id: int | None
    return_log_probs: bool | None
    top_logprobs: int | None
    return_prompt_log_probs: bool | None
    exclude_input_in_output: bool | None
    num_draft_tokens: int | None
    num_prompt_tokens: int | None
    priority: int | None
    speculation: str | None
    drafter: str | None
    verification: str | None
    slo_class: str | None
    slo_ttft_ms: float | None
    slo_tpot_ms: float | None
    tenant: str | None
    pad_id: int | None
    beam_width: int | None
    num_return_sequences: int | None
    length_penalty: float | None
    return_context_logits: bool | None
    return_generation_logits: bool | None
    return_perf_metrics: bool | None
    # generated: end
