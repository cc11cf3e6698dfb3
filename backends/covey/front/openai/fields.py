"""Turns a body's fields into settings of `covey`. OpenAI's and vLLM's names are translated, unsupported fields are
refused by name, and unknown fields are ignored. The types of the `openai` package have neither vLLM's fields nor
ranges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey.front.failures import refused
from covey.front.inference_request import STREAM
from covey_client.errors import InvalidRequest
from covey_client.wire import INPUT_BY_NAME, MAX_BIASES, PROMPT

SCORES = "return_prompt_log_probs"
# Covey's fields that a route sets, and the field that decides each. A body may only repeat what is decided.
DECIDED_BY = {
    "exclude_input_in_output": "echo of /v1/completions",
    "num_prompt_tokens": "",
    "return_log_probs": "logprobs",
    SCORES: "echo and logprobs of /v1/completions",
}
GRAMMAR_FIELDS = ("grammar_json", "grammar_regex", "grammar_lark")
COMBINED = ("stop_words", "logit_bias", "logit_bias_ids", *GRAMMAR_FIELDS)  # OpenAI's fields may set the same
OWN = tuple(each for each in INPUT_BY_NAME if each not in (*PROMPT, STREAM, "top_logprobs", *DECIDED_BY, *COMBINED))
DEFAULTS = {"temperature": 1.0}  # OpenAI's default, where Covey's differs
STRUCTURED = "structured_outputs"  # vLLM's
GUIDED = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")  # its older names
# Known fields that accept only these values, which describe what happens anyway.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "function_call": ("none",),
    "functions": ([],),
    **dict.fromkeys(GUIDED, ()),
    "include_stop_str_in_output": (False,),
    "modalities": (["text"],),
    "prompt_logprobs": (0,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("none",),  # `tools` handles those of chats
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
INSTEAD = {
    "best_of": "n, and logprobs to choose by",
    "function_call": "tool_choice",
    "functions": "tools",
    **dict.fromkeys(GUIDED, STRUCTURED),
    "prompt_logprobs": "echo and logprobs of /v1/completions",
    "suffix": "a prompt with the model's own tokens for what is to be filled in",
}
ANY_OBJECT = '{"type": "object"}'  # what `json_object` promises
IN_STRUCTURED = {
    "json": "grammar_json",
    "json_object": "grammar_json",
    "regex": "grammar_regex",
    "grammar": "grammar_lark",
    "choice": "grammar_lark",
}
IN_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
MOST_CHOICES = 128
SEEDS = 1 << 64
# The names that Covey's fields may have in a body. An error gets the first one that the body has, else the last.
NAMES = {
    "stop_words": ("stop_words", "stop"),
    "return_log_probs": ("return_log_probs", "logprobs"),
    "exclude_input_in_output": ("exclude_input_in_output", "echo"),
    "logit_bias_ids": ("logit_bias_ids", "logit_bias"),
    "max_tokens": ("max_completion_tokens", "max_tokens", "ignore_eos"),
}
NAMES_OF_CHATS = dict.fromkeys((*PROMPT, "prompt"), ("messages",))
NAMES_OF_COMPLETIONS = {**dict.fromkeys(PROMPT, ("prompt",)), "top_logprobs": ("logprobs",)}


@dataclass(frozen=True)
class Given:
    """The fields of a body except its prompt."""

    settings: Mapping[str, Any]  # by Covey's own names, not yet checked
    n: int
    stream: bool
    usage: bool  # send usage as the last event of a stream
    running_usage: bool  # and also in every event
    log_probs: bool


def read(body: Mapping[str, Any], *, chat: bool, most_tokens: int, sampling: Mapping[str, float]) -> Given:
    """Read a body's fields. `most_tokens` is the default output length, and `sampling` the model makers' advice. Raises
    InvalidRequest."""
    given = {name: value for name, value in body.items() if value is not None}
    check_only(given, ONLY, INSTEAD, "server")
    settings = DEFAULTS | dict(sampling) | {name: given[name] for name in OWN if name in given}
    if "max_completion_tokens" in given:
        settings["max_tokens"] = given["max_completion_tokens"]
    if stops := _stops(given):
        settings["stop_words"] = stops
    if settings.get("top_k") == -1:  # vLLM's value for no limit
        settings["top_k"] = 0
    if type(settings.get("seed")) is int:
        settings["seed"] = _seed(settings["seed"])
    if _flag(given, "ignore_eos"):
        settings["min_tokens"] = settings.setdefault("max_tokens", most_tokens)
    top = _top_log_probs(given, chat)
    log_probs = top is not None
    if log_probs:
        settings |= {"return_log_probs": True, "top_logprobs": top}
    settings |= _bias(given) | _grammar(given)
    if not chat and _flag(given, "echo"):
        settings |= {"exclude_input_in_output": False, **({SCORES: True} if log_probs else {})}
    decided = {name: settings.get(name, INPUT_BY_NAME[name].default) for name in DECIDED_BY}
    check_only(given, {name: () if it is None else (it,) for name, it in decided.items()}, DECIDED_BY, "route")
    if settings.get("max_tokens") == 0 and SCORES not in settings:
        name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
        raise refused(name, 0, "1 or more" + ("" if chat else ", or 0 with echo and logprobs"))
    stream, options = _flag(given, STREAM), given.get("stream_options", {})
    if not isinstance(options, dict) or (options and not stream):
        raise refused("stream_options", options, "an object, and only with stream true")
    usage, running = (_flag(options, name) for name in IN_STREAM_OPTIONS)
    n = _count(given.get("n", 1))
    return Given(settings, n, stream, usage, usage and running, log_probs)


def check_only(
    given: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], instead: Mapping[str, str], where: str
) -> None:
    """Refuse known fields with other values than these. 0 and 1 are no booleans."""
    for name, allowed in only.items():
        if name in given and not any(type(given[name]) is type(each) and given[name] == each for each in allowed):
            said = f"only {', '.join(map(repr, allowed))}" if allowed else "nothing"
            use = f"; use {instead[name]}" if instead.get(name) else ""
            raise refused(name, given[name], f"{said}: this {where} has no {name}{use}")


def derived(seed: int, number: int) -> int:
    """Return the seed of a later choice."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "little")


def of_choice(settings: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the settings of one of the `n` choices, with a seed derived from the request's."""
    return {**settings, "seed": derived(settings["seed"], number)} if number and "seed" in settings else settings


def _stops(given: Mapping[str, Any]) -> list[Any]:
    """Return the texts of `stop` and `stop_words`, each a text or a list. Raises InvalidRequest."""
    found: list[Any] = []
    for name in ("stop", "stop_words"):
        value = given.get(name, [])
        if not isinstance(value, (str, list)):
            raise refused(name, value, "a text or a list of texts")
        found += [value] if isinstance(value, str) else value
    return [word for word in found if word != ""]


def _seed(value: int) -> int:
    """Map OpenAI's signed seeds: negative ones become the upper half of Covey's."""
    return value % SEEDS if -SEEDS // 2 <= value < 0 else value


def _top_log_probs(given: Mapping[str, Any], chat: bool) -> Any:
    """Return how many top log-probabilities to add to each token's own; None for no log-probabilities."""
    if not chat:
        value = given.get("logprobs", False)
        count = {True: 0, False: None}[value] if isinstance(value, bool) else value
        if given.get("top_logprobs", 0) not in (0, count):
            raise refused("top_logprobs", given["top_logprobs"], "0: logprobs says how many in a completion")
        return count
    top = given.get("top_logprobs", 0)
    if _flag(given, "logprobs"):
        return top
    if top != 0:
        raise refused("top_logprobs", top, "0, or logprobs true as well")
    return None


def _bias(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the biases as Covey's two lists. OpenAI's object, whose ids are texts in JSON, is converted."""
    value, ids = given.get("logit_bias", {}), given.get("logit_bias_ids", [])
    if ids != []:
        if not isinstance(ids, list) or not isinstance(value, list) or len(ids) != len(value):
            raise refused("logit_bias_ids", ids, "a list as long as the list logit_bias")
        return {"logit_bias_ids": ids, "logit_bias": value}
    if not isinstance(value, dict) or not all(name.isdecimal() and len(name) < 11 for name in value):
        raise refused("logit_bias", value, "an object from token ids to numbers, or a list with logit_bias_ids")
    if len(value) > MAX_BIASES:
        raise refused("logit_bias", value, f"at most {MAX_BIASES} tokens")
    return {"logit_bias_ids": [int(name) for name in value], "logit_bias": list(value.values())} if value else {}


def _grammar(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one grammar for the output. Raises InvalidRequest if there are several."""
    found = []
    for name in GRAMMAR_FIELDS:
        if not isinstance(given.get(name, ""), str):
            raise refused(name, given[name], "a text")
        if given.get(name):
            found.append((name, given[name]))
    found += _structured(given.get(STRUCTURED, {}))
    wanted = given.get("response_format", {"type": "text"})
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_object":
        found.append(("grammar_json", ANY_OBJECT))
    elif kind == "json_schema":
        inner = wanted["json_schema"] if isinstance(wanted.get("json_schema"), dict) else {}
        if not isinstance(inner.get("schema"), dict):
            raise refused("response_format", "no schema", "json_schema.schema, an object")
        found.append(("grammar_json", _schema(inner["schema"])))
    elif kind != "text":
        raise refused("response_format", kind, "an object with the type text, json_object or json_schema")
    if len(found) > 1:
        name, *others = _with_a_grammar(given)
        raise refused(name, f"{len(found)} grammars", f"one, in {' or '.join((name, *others))}")
    return dict(found)


def _with_a_grammar(body: Mapping[str, Any]) -> list[str]:
    """Return the fields that have a grammar for the output."""
    found = own_grammars(body)
    return found if body.get("response_format") in (None, {"type": "text"}) else [*found, "response_format"]


def own_grammars(body: Mapping[str, Any]) -> list[str]:
    """Return the fields, other than OpenAI's, that have a grammar for the output."""
    found = [name for name in GRAMMAR_FIELDS if body.get(name) not in (None, "")]
    structured = body.get(STRUCTURED)
    return [*found, STRUCTURED] if (_said(structured) if isinstance(structured, dict) else structured) else found


def _said(structured: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in structured.items() if each is not None and each is not False}


def _structured(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise refused(STRUCTURED, value, "an object")
    said = _said(value)
    if said.get("json_object") is True:
        said["json_object"] = ANY_OBJECT
    for name in said:
        if name not in IN_STRUCTURED:
            raise refused(STRUCTURED, name, f"{', '.join(IN_STRUCTURED)}: this server has no other")
    if "json" in said:
        said["json"] = _schema(said["json"])
    if "choice" in said:
        said["choice"] = _choice(said["choice"])
    return [(IN_STRUCTURED[name], each) for name, each in said.items()]


def _choice(value: Any) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise refused(STRUCTURED, value, "a list of texts as choice, one of which becomes the output")
    return f"start: {' | '.join(map(json.dumps, value))}"


def _schema(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)  # its length is bounded in bytes


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if type(value) is not bool:
        raise refused(name, value, "true or false")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MOST_CHOICES:
        raise refused("n", value, f"1 to {MOST_CHOICES}")
    return value


def renamed(error: InvalidRequest, body: Mapping[str, Any], *, chat: bool) -> InvalidRequest:
    """Return the error with the field's name in the body."""
    if error.field in (*GRAMMAR_FIELDS, "grammar"):
        return _of_grammar(error, body)
    names = (NAMES | (NAMES_OF_CHATS if chat else NAMES_OF_COMPLETIONS)).get(error.field)
    if names is None:
        return error
    name = next((name for name in names if body.get(name) not in (None, [])), names[-1])
    told = str(error).replace(error.field, name, 1)
    if name == "ignore_eos":  # the caller has not said how many tokens
        told += "; set max_tokens"
    return type(error)(told, name)


def _of_grammar(error: InvalidRequest, body: Mapping[str, Any]) -> InvalidRequest:
    """Return an error of the output's grammar with the names of the fields that it was made of."""
    made_of = _with_a_grammar(body)
    if body.get("tools") and body.get("tool_choice") != "none":
        made_of.append("tools")
    name = error.field if error.field in made_of else (*made_of, "response_format")[0]
    if error.field != "grammar_lark":
        return type(error)(str(error).replace(error.field, name, 1), name)
    names = " and ".join(made_of) or name
    cause = str(error).partition("can be compiled: ")[2]  # the front may have written the rules, so it shows none
    told = f"{names}: no grammar can be made of it: {cause}" if cause else str(error).replace(error.field, names, 1)
    return type(error)(told, name)
