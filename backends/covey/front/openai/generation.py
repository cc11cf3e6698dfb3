"""Answers /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

from covey.front.failures import refused
from covey.front.fair_queue import Job
from covey.front.gateway import Gateway
from covey.front.http_bodies import json_object
from covey.front.http_calls import HttpCall
from covey.front.inference_request import NEEDED, InferenceRequest
from covey.front.openai import choices, errors, fields, forms, prompts
from covey.front.openai.delta import AnswerParser, Delta
from covey.front.openai.fields import Given, of_choice
from covey.front.openai.pieces import Offsets
from covey.front.openai.shapes import CompletionShape, log_probs, usage
from covey.front.openai.text_processor import Prompt
from covey.front.openai.texts import Texts
from covey.front.openai.thinking import ReasoningParser, Thinking
from covey.front.openai.tool_calls import ToolCallParser
from covey.front.openai.tools import Tools, taken
from covey_client.errors import CoveyClientError, InvalidRequest
from covey_client.response import Chunk
from covey_client.wire import MODEL

GRAMMAR = "grammar_lark"
# The outputs to name where usage is wanted in each response.
OUTPUTS = (
    *NEEDED,
    *("num_input_tokens", "num_output_tokens", "num_reused_tokens", "slo_attainment"),
    *("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_histogram"),
)
LOG_PROBS = ("output_log_probs", "output_top_ids", "output_top_log_probs")
OF_PROMPT = ("prompt_ids", "prompt_log_probs", "prompt_top_ids", "prompt_top_log_probs")


@dataclass(frozen=True)
class CheckedBody:
    """A checked body: its requests to `covey`, and the facts for writing their answers."""

    texts: Texts
    given: Given
    requests: tuple[InferenceRequest, ...]  # `n` for each prompt
    shape: CompletionShape
    parsers: tuple[AnswerParser | None, ...]  # of choices whose answers may contain more than words


async def chat(call: HttpCall, body: bytes) -> None:
    await _answer(call, body, chat=True)


async def completions(call: HttpCall, body: bytes) -> None:
    await _answer(call, body, chat=False)


async def _answer(call: HttpCall, body: bytes, *, chat: bool) -> None:
    parsed = json_object(body)
    try:
        checked = await check_body(call, parsed, chat)
        with ExitStack() as held:
            for _ in checked.requests[1:]:
                held.enter_context(call.gateway.admitted(call.caller, 0))
            await (_stream if checked.given.stream else _whole)(call, checked)
    except InvalidRequest as error:
        raise fields.renamed(error, parsed, chat=chat) from None


async def check_body(call: HttpCall, parsed: Mapping[str, Any], chat: bool) -> CheckedBody:
    gateway, tools = call.gateway, None
    if chat:
        tools, parsed = taken(parsed)
    given = fields.read(parsed, chat=chat, most_tokens=gateway.most_tokens, sampling=gateway.sampling)
    name, texts = gateway.served(parsed.get("model")), gateway.texts
    found: list[str | list[int]] = []
    parser: Callable[[], AnswerParser | None] | None = None
    if chat:
        prompt = await rendered(call.job, texts, parsed, tools)
        if tools is not None or prompt.thinking is not None:
            given, parser = await _with_grammar(given, tools, prompt.thinking, texts)
        found.append(prompt.ids)
    else:
        found += prompts.prompts(parsed.get("prompt"))
    if len(found) * given.n > fields.MOST_CHOICES:
        raise refused("n", given.n, f"at most {fields.MOST_CHOICES} choices for all {len(found)} prompts together")
    requests = _inference_requests(gateway, found, given)
    parsers = tuple(parser() if parser else None for _ in requests)
    return CheckedBody(texts, given, requests, CompletionShape(chat, name), parsers)


async def rendered(job: Job, texts: Texts, parsed: Mapping[str, Any], tools: Tools | None) -> Prompt:
    """Return the body's conversation, rendered by the model's template."""
    messages, settings = prompts.messages(parsed.get("messages")), prompts.template_settings(parsed)
    if tools is not None:
        settings["tools"] = list(tools.told)
    return await texts.chat(job, messages, settings)


async def _with_grammar(
    given: Given, tools: Tools | None, thinking: Thinking | None, texts: Texts
) -> tuple[Given, Callable[[], AnswerParser | None]]:
    """Return the settings with a grammar for these tools and thoughts, and a factory of parsers for such answers."""
    form, marks = await texts.form() if tools else None, await texts.marks()
    answer, rules = forms.answer_rules(given.settings), ""
    if tools and form:
        rules = forms.grammar(form, tools, marks, thinking, answer)
    elif thinking and answer:
        rules = forms.behind_thoughts(thinking, answer, marks)
    if rules:
        others = {name: value for name, value in given.settings.items() if name not in fields.GRAMMAR_FIELDS}
        given = replace(given, settings={**others, GRAMMAR: rules})

    def parser() -> AnswerParser | None:
        calls = ToolCallParser(form, marks, tools) if tools and form else None
        return ReasoningParser(thinking, calls) if thinking else calls

    return given, parser


def _inference_requests(
    gateway: Gateway, found: Sequence[str | list[int]], given: Given
) -> tuple[InferenceRequest, ...]:
    """Return `n` requests for each prompt."""
    common = {name: value if isinstance(value, list) else [value] for name, value in given.settings.items()}
    common["stream"] = [given.stream or len(found) * given.n > 1]
    scores = OF_PROMPT if fields.SCORES in given.settings else ()
    outputs = (*OUTPUTS, *(LOG_PROBS if given.log_probs else ()), *scores) if given.running_usage else ()
    requests = []
    for prompt in found:
        tensor = {"text_input": [prompt]} if isinstance(prompt, str) else {"input_ids": prompt}
        requests.append(
            InferenceRequest.of(MODEL, {**tensor, **common}, prompt_bytes=gateway.prompt_bytes, outputs=outputs)
        )
    numbers = range(given.n)
    return tuple(replace(each, settings=of_choice(each.settings, number)) for each in requests for number in numbers)


async def _whole(call: HttpCall, checked: CheckedBody) -> None:
    given, shape = checked.given, checked.shape
    found = await choices.whole(call.gateway, call.caller, checked.requests, given.n)
    probabilities = [await log_probs_of(checked, chunk, Offsets()) for chunk in found]
    deltas = [delta_of(parser, chunk) for parser, chunk in zip(checked.parsers, found)]
    await call.json(shape.whole(found, probabilities, deltas, given.n))


async def _stream(call: HttpCall, checked: CheckedBody) -> None:
    given, shape = checked.given, checked.shape
    last: dict[int, Chunk] = {}
    offsets = [Offsets() for _ in checked.requests]

    async def failed(error: CoveyClientError) -> None:
        await call.event(_json(errors.body(error)))

    async with call.events(failed):
        async with aclosing(choices.parts(call.gateway, call.caller, checked.requests, given.n)) as coming:
            async for index, chunk in coming:
                first = index not in last
                last[index] = chunk
                delta = delta_of(checked.parsers[index], chunk)
                if first or not delta.empty or given.log_probs:
                    probabilities = await log_probs_of(checked, chunk, offsets[index])
                    part = shape.part(index, chunk, probabilities, delta, first=first)
                    if given.usage:
                        part["usage"] = usage([chunk.usage], 1) if given.running_usage else None
                    await call.event(_json(part))
        if given.usage:
            await call.event(_json(shape.totals(_in_order(last), given.n)))
    await call.event(b"[DONE]")
    await call.end()


def delta_of(parser: AnswerParser | None, chunk: Chunk) -> Delta:
    return Delta(chunk.text, finish_reason=chunk.finish_reason) if parser is None else parser.feed(chunk)


async def log_probs_of(checked: CheckedBody, chunk: Chunk, offsets: Offsets) -> dict[str, Any] | None:
    if not checked.given.log_probs:
        return None
    ids = {*chunk.tokens, *chunk.top_ids, *chunk.prompt_ids, *chunk.prompt_top_ids}
    pieces = await checked.texts.pieces(ids)
    return log_probs(checked.shape.chat, chunk, pieces, offsets)


def _in_order(last: Mapping[int, Chunk]) -> Sequence[Chunk]:
    return [last[index] for index in sorted(last)]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
