"""Builds a `Request` from a public request's fields, which `covey_client.wire` declares, and refuses invalid ones.

It knows the limits of the target and of the profile. Whether there is room now is for the scheduler to decide.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from covey.contracts.errors import BadField, SettingError
from covey.contracts.objectives import Classes
from covey.contracts.profile import LimitSettings
from covey.contracts.tenants import ANY, numbers
from covey.contracts.types import Objective, Request, Rule, Sampling, TargetInfo
from covey.process.traces import PARENT
from covey.requests.roster import Roster
from covey.text import grammar
from covey.text.grammar_verdicts import Verdicts
from covey.text.tokenization import longest_token, token_ids
from covey_client.wire import (
    DELIVERY,
    INPUT_BY_NAME,
    INPUTS,
    MAX_BIASES,
    MAX_DRAFT_TOKENS,
    NEUTRAL,
    REQUEST,
    SAMPLING,
    Field,
    unknown,
)

_FIXED = frozenset(f"fixed:{depth}" for depth in range(1, MAX_DRAFT_TOKENS + 1))
STOP_WORDS, BAD_WORDS = 16, 64  # the most that a request may have
WORD_BYTES = 256  # of a stop or bad word
NO_DRAFTERS = "{}: this server has no drafters"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A checked request, and how to deliver its answer."""

    request: Request
    stream: bool
    stop_words: tuple[str, ...]
    prefix: str  # text before the output: the prompt, if the client wants it back


class RequestParser:
    """Checks requests against one target's limits."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        info: TargetInfo,
        limits: LimitSettings,
        roster: Roster,
        classes: Classes | None = None,
        priorities: Iterable[str] = ("*:1000",),
        *,
        grammars: Verdicts | None = None,
    ) -> None:
        """`classes` are the latency classes. `priorities` are the highest priorities by tenant, like
        `tenants.priorities`. `grammars` compiles grammars; the default compiles them in the calling thread."""
        self._grammars = grammars or Verdicts(self._compiled_here)
        self._tokenizer = tokenizer
        self._info = info
        self._limits = limits
        self._roster = roster
        self._context = info.longest
        pool = ": the KV pool holds no more, see target.kv_memory_mb"
        self._limit = "" if info.longest == info.max_positions else pool
        self._classes = classes or Classes()
        self._priorities = numbers(priorities)
        self._longest_token = math.inf if tokenizer is None else longest_token(tokenizer)

    def parse(
        self, key: int, arrival: float, tensor: Callable[[str], Any], parameters: dict[str, Any] | None = None
    ) -> Wanted:
        """Return the request in one set of tensors (`tensor(name)` is an array or None). Raises BadField."""
        _check_parameters(parameters or {})
        read = FieldReader(tensor)
        read.check(NEUTRAL)
        self.prompt_bytes(tensor)
        text = read.given("text_input")
        ids = read.array("input_ids")
        if (text is None) == (ids is None):
            raise BadField("text_input", text, "exactly one of text_input and input_ids")
        prompt = self._prompt(text) if text is not None else self._ids(ids)
        left = self._context - len(prompt)
        max_tokens = read.integer("max_tokens", default=max(1, min(self._limits.max_tokens, left)))
        self._check_room(len(prompt), max_tokens)
        scores = "return_prompt_log_probs"
        if read.boolean(scores) and self._info.emulated:
            raise BadField(scores, True, "false: an emulated target has no probabilities")
        if not max_tokens and not read.boolean(scores):
            raise BadField("max_tokens", 0, f"at least 1, or 0 with {scores}")
        end_id = read.integer("end_id", high=self._info.vocab_size - 1)
        num_prompt = read.integer("num_prompt_tokens", default=len(prompt), high=len(prompt))
        sampling = Sampling(
            min_tokens=read.integer("min_tokens", high=len(prompt) - num_prompt + max_tokens),
            end_ids=self._end_ids(end_id),
            bad_words=self._bad_words(read.texts("bad_words")),
            logit_bias=self._logit_bias(read.values("logit_bias_ids"), read.values("logit_bias")),
            seed=read.seed(),
            grammar=self._grammar(read, end_id),
            rule=Rule(read.choice("verification", INPUT_BY_NAME["verification"].choices)),
            **read.part(SAMPLING),
        )
        exclude = read.boolean("exclude_input_in_output")
        request = Request(
            key=key,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            num_prompt=num_prompt,
            speculation=self._speculation(read),
            drafter=read.choice("drafter", ("", *self._roster.names)),
            arrival=arrival,
            objective=self._objective(read),
            **read.part(REQUEST),
        )
        self._check_priority(request.tenant, request.priority)
        return Wanted(
            request,
            stop_words=self._stop_words(read.texts("stop_words")),
            prefix="" if exclude else (text if text is not None else self._decode(prompt)),
            **read.part(DELIVERY),
        )

    def prompt_bytes(self, tensor: Callable[[str], Any]) -> int:
        """Return the length of a prompt's text in bytes, 0 if it has none. Raises BadField, without tokenizing, if the
        text must have more tokens than the context."""
        raw = tensor("text_input")
        if raw is None or raw.size != 1:
            return 0
        text = raw.reshape(-1)[0]
        check_prompt(text, self._limits)
        size = len(text)
        if size > self._context * self._longest_token:
            allowed = f"prompts of at most {self._context - 1} tokens (the context{self._limit})"
            raise BadField("text_input", f"{size} bytes", allowed)
        return size

    def has_new_grammar(self, tensor: Callable[[str], Any]) -> bool:
        """Return whether `parse` would have to wait for the compiler of grammars."""
        read = FieldReader(tensor)
        try:
            name, text = self._asked_grammar(read)
            return bool(text) and not self._grammars.knows(name, text, self._end_ids(read.integer("end_id")))
        except BadField:
            return False  # `parse` will raise it

    def check_grammar(self, tensor: Callable[[str], Any]) -> None:
        """Compile the request's grammar, so that `parse` finds it; waits for the compiler. Raises RequestError."""
        read = FieldReader(tensor)
        self._grammar(read, read.integer("end_id", high=self._info.vocab_size - 1))

    def _prompt(self, text: str) -> Any:
        ids = token_ids(self._needed_tokenizer("text_input"), text)
        if not len(ids):
            raise BadField("text_input", text, "text of at least one token")
        self._check_known("text_input", ids)
        return ids

    def _ids(self, ids: Any) -> Any:
        ids = ids.reshape(-1)
        if not len(ids):
            raise BadField("input_ids", [], "at least one token")
        self._check_known("input_ids", ids)
        return np.array(ids, np.int32)

    def _check_known(self, field: str, ids: Any) -> None:
        """Raise BadField if the model lacks one of the tokens. A tokenizer may have tokens that its model lacks."""
        ids, most = np.asarray(ids), self._info.vocab_size - 1
        outside = ids[(ids < 0) | (ids > most)]
        if not len(outside):
            return
        first, allowed = int(outside[0]), f"token ids from 0 to {most}"
        name = None if self._tokenizer is None or first < 0 else self._tokenizer.id_to_token(first)
        raise BadField(field, first, allowed if name is None else f"{allowed}: the model lacks this one, {name!r}")

    def _check_room(self, prompt: int, max_tokens: int) -> None:
        context = self._context
        most = context - 1 if max_tokens else context
        if prompt > most:
            raise BadField(
                "text_input", f"{prompt} tokens", f"prompts of at most {most} tokens (the context{self._limit})"
            )
        if prompt + max_tokens > context:
            raise BadField(
                "max_tokens",
                max_tokens,
                f"at most {context - prompt} after a prompt of {prompt} tokens (the context is {context}{self._limit})",
            )

    def _check_priority(self, tenant: str, priority: int) -> None:
        highest = int(self._priorities.get(tenant, self._priorities.get(ANY, 0)))
        if priority > highest:
            raise BadField("priority", priority, f"at most {highest} for this tenant")

    def _stop_words(self, words: list[str]) -> tuple[str, ...]:
        if len(words) > STOP_WORDS:
            raise BadField("stop_words", f"{len(words)} words", f"at most {STOP_WORDS} words")
        for word in words:
            self._check_word("stop_words", word)
        if words:
            self._needed_tokenizer("stop_words")
        return tuple(words)

    def _bad_words(self, words: list[str]) -> tuple[tuple[int, ...], ...]:
        if len(words) > BAD_WORDS:
            raise BadField("bad_words", f"{len(words)} words", f"at most {BAD_WORDS} words")
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            self._check_word("bad_words", word)
            tokenizer = self._needed_tokenizer("bad_words")
            for form in (word, " " + word):  # at the start of a text, and after a space
                ids = tokenizer.encode(form, add_special_tokens=False).ids
                self._check_known("bad_words", ids)
                sequences[tuple(ids)] = None
        return tuple(sequences)

    def _grammar(self, read: FieldReader, end_id: int) -> str:
        """Return the grammar that the output must fit, or "". It is compiled once to see that it can be."""
        name, text = self._asked_grammar(read)
        if not text:
            return ""
        if self._info.emulated:
            raise BadField(name, text, "nothing: an emulated target has only one token for each position")
        if end_id >= 0 and end_id not in self._info.end_ids:
            raise BadField("end_id", end_id, "the model's own with a grammar, which decides where the text may end")
        least = read.integer("min_tokens")
        if least:
            raise BadField("min_tokens", least, "0 with a grammar, which decides where the text may end")
        try:
            return self._grammars.compiled(name, text, self._end_ids(end_id))
        except ValueError as error:
            raise BadField(name, text, str(error)) from None

    def _asked_grammar(self, read: FieldReader) -> tuple[str, str]:
        """Return the name and text of the field that has a grammar, or two empty strings."""
        asked = {name: read.text(name) for name in grammar.SOURCES}
        asked = {name: text for name, text in asked.items() if text}
        if not asked:
            return "", ""
        (name, text), *others = reversed(asked.items())
        if others:
            raise BadField(name, text, f"only one grammar, this or {others[0][0]}")
        return name, text

    def _end_ids(self, end_id: int) -> tuple[int, ...]:
        return self._info.end_ids if end_id < 0 else (end_id,)

    def _compiled_here(self, name: str, text: str, end_ids: tuple[int, ...]) -> str:
        try:
            tokenizer = grammar.tokenizer_of(self._info.folder, self._info.vocab_size, end_ids)
        except SettingError as error:
            raise ValueError(f"nothing with this target: {error}") from None
        return grammar.compiled(name, text, tokenizer)

    def _logit_bias(self, ids: list[int], values: list[float]) -> tuple[tuple[int, float], ...]:
        field = INPUT_BY_NAME["logit_bias"]
        if len(ids) != len(values):
            raise BadField("logit_bias", f"{len(values)} values", f"one for each of the {len(ids)} logit_bias_ids")
        if len(ids) > MAX_BIASES:
            raise BadField("logit_bias_ids", f"{len(ids)} tokens", f"at most {MAX_BIASES}")
        self._check_known("logit_bias_ids", ids)
        for value in values:
            if not field.low <= value <= field.high:  # NaN is in no range
                raise BadField("logit_bias", value, f"{field.low:g} to {field.high:g}")
        if len(set(ids)) < len(ids):
            raise BadField("logit_bias_ids", ids, "each token once")
        return tuple(zip(ids, values))

    def _check_word(self, field: str, word: str) -> None:
        if not word or len(word.encode()) > WORD_BYTES:
            raise BadField(field, word, f"words of 1 to {WORD_BYTES} bytes")

    def _speculation(self, read: FieldReader) -> str:
        wanted = read.given("speculation")
        count = read.integer("num_draft_tokens", default=-1)
        if wanted is None:
            if count > 0 and not self._roster.names:
                raise BadField("num_draft_tokens", count, NO_DRAFTERS.format("0"))
            return "auto" if count < 0 else ("off" if count == 0 else f"fixed:{count}")
        if count >= 0 and wanted != f"fixed:{count}" and not (count == 0 and wanted == "off"):
            raise BadField("num_draft_tokens", count, f"nothing that contradicts speculation={wanted!r}")
        if wanted in _FIXED and not self._roster.names:
            raise BadField("speculation", wanted, NO_DRAFTERS.format("auto or off"))
        if wanted in ("auto", "off") or wanted in _FIXED:
            return wanted
        raise BadField("speculation", wanted, f"auto, off or fixed:k with k from 1 to {MAX_DRAFT_TOKENS}")

    def _objective(self, read: FieldReader) -> Objective:
        name = read.choice("slo_class", ("", *self._classes.names))
        return self._classes.objective(name, read.number("slo_ttft_ms"), read.number("slo_tpot_ms"))

    def _needed_tokenizer(self, field: str) -> Tokenizer:
        if self._tokenizer is None:
            raise BadField(field, "text", "nothing: this target has no tokenizer; send input_ids")
        return self._tokenizer

    def _decode(self, ids: Any) -> str:
        return str(self._needed_tokenizer("exclude_input_in_output").decode(ids.tolist()))


def check_prompt(text: bytes, limits: LimitSettings) -> None:
    """Raise BadField for a text that is empty or too long for the tokenizer."""
    if not text:
        raise BadField("text_input", "", "at least one character")
    if len(text) > limits.prompt_bytes:
        raise BadField("text_input", f"{len(text)} bytes", f"at most {limits.prompt_bytes} bytes")


def tenant_of(tensor: Callable[[str], Any]) -> str:
    """Return the request's tenant before it is checked."""
    raw = tensor("tenant")
    return "" if raw is None or raw.size != 1 else str(raw.reshape(-1)[0])[:256]


def _check_parameters(parameters: dict[str, Any]) -> None:
    """Raise BadField for parameters other than Triton's own and a trace's parent. Settings are tensors: one sent as a
    parameter would be ignored. The generate endpoints turn a body's known names into tensors, and all others into
    parameters."""
    for name, value in parameters.items():
        if name in INPUT_BY_NAME:
            raise BadField(name, value, "an input tensor of this name: settings are no request parameters")
        if not name.startswith("triton_") and name != PARENT:
            raise BadField(name, value, unknown(name))


class FieldReader:
    """Reads typed scalars and lists from the tensors of a public request. An absent field has its default."""

    def __init__(self, tensor: Callable[[str], Any]) -> None:
        self._tensor = tensor

    def part(self, part: str) -> dict[str, Any]:
        """Return the fields that the given part of a request takes unchanged, by attribute."""
        return {field.attribute: self._plain(field) for field in INPUTS if field.part == part}

    def check(self, fields: Iterable[Field]) -> None:
        """Raise BadField for invalid values of fields that are otherwise ignored."""
        for field in fields:
            self._plain(field)

    def _plain(self, field: Field) -> Any:
        if field.choices:
            return self.choice(field.name, field.choices)
        readers = {"INT32": self.integer, "FP32": self.number, "BOOL": self.boolean, "BYTES": self.text}
        return readers[field.dtype](field.name)

    def array(self, name: str) -> Any:
        return self._tensor(name)

    def scalar(self, name: str) -> Any:
        value = self._tensor(name)
        if value is None:
            return None
        if value.size != 1:
            raise BadField(name, f"{value.size} values", "one value")
        return value.reshape(-1)[0]

    def boolean(self, name: str) -> bool:
        value = self.scalar(name)
        if value and not INPUT_BY_NAME[name].high:
            raise BadField(name, True, "false")
        return bool(INPUT_BY_NAME[name].default if value is None else value)

    def integer(self, name: str, *, default: int | None = None, high: int | None = None) -> int:
        """Return a field's value. `default` and `high` replace those of the table. Raises BadField."""
        value, field = self.scalar(name), INPUT_BY_NAME[name]
        if value is None:
            return int(field.default or 0) if default is None else default
        most = field.high if high is None else high
        if not field.low <= int(value) <= most:
            raise BadField(name, int(value), f"{field.low} to {most}")
        return int(value)

    def number(self, name: str) -> float:
        value, field = self.scalar(name), INPUT_BY_NAME[name]
        if value is None:
            return float(field.default or 0)
        value = float(value)
        low = float(np.float32(field.low))  # the bound as a tensor holds it
        if not low <= value <= field.high or (field.above and value == low):  # NaN is in no range
            raise BadField(name, value, f"{'above ' if field.above else ''}{field.low:g} to {field.high:g}")
        return value

    def seed(self) -> int:
        value = self.scalar("seed")
        return secrets.randbits(64) if value is None else int(value)

    def text(self, name: str) -> str:
        value = self.given(name)
        return str(INPUT_BY_NAME[name].default or "") if value is None else value

    def given(self, name: str) -> str | None:
        """Return a text, or None if absent."""
        value, high = self.scalar(name), INPUT_BY_NAME[name].high
        if value is None:
            return None
        text = _decoded(name, value)
        if len(text.encode()) > high:
            raise BadField(name, text, f"at most {high} bytes")
        return text

    def values(self, name: str) -> list[Any]:
        """Return a list of numbers."""
        value = self._tensor(name)
        found: list[Any] = [] if value is None else value.reshape(-1).tolist()
        return found

    def texts(self, name: str) -> list[str]:
        """Return a list of texts. A single empty text means none, as with TensorRT-LLM's clients."""
        value = self._tensor(name)
        found = [] if value is None else [_decoded(name, item) for item in value.reshape(-1)]
        return [] if found == [""] else found

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise BadField(name, value, ", ".join(repr(item) for item in allowed))
        return value


def _decoded(name: str, value: Any) -> str:
    try:
        return str(value.decode() if isinstance(value, bytes) else value)
    except UnicodeDecodeError:
        raise BadField(name, value, "UTF-8 text") from None
