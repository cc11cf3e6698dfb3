"""Answers /v1/chat/completions and /v1/completions: checks a body, asks for all choices, writes what comes.

The parts below `checked_prompts` also serve Responses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

from covey.front.admission import Caller
from covey.front.failures import refused
from covey.front.fair_queue import Job
from covey.front.gateway import Gateway
from covey.front.http_bodies import json_object
from covey.front.http_calls import HttpCall
from covey.front.inference_request import NEEDED, InferenceRequest
from covey.front.openai import errors, fields, forms
from covey.front.openai.delta import AnswerParser, Delta
from covey.front.openai.fields import Given, of_choice
from covey.front.openai.pieces import Offsets
from covey.front.openai.shapes import CompletionShape, log_probs, usage
from covey.front.openai.text_processor import Prompt
from covey.front.openai.texts import Texts
from covey.front.openai.thinking import ReasoningParser, Thinking
from covey.front.openai.tool_calls import ToolCallParser
from covey.front.openai.tools import Tools, taken, told_calls
from covey_client.errors import CoveyClientError, InvalidRequest
from covey_client.response import Chunk, Completion
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
MOST_PROMPTS = 128
MOST_MESSAGES = 4096
ROLES = ("system", "user", "assistant", "tool")
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # parts of content
RENAMED = {"developer": "system"}  # OpenAI's newer name, unknown to templates


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
        found += checked_prompts(parsed.get("prompt"))
    if len(found) * given.n > fields.MOST_CHOICES:
        raise refused("n", given.n, f"at most {fields.MOST_CHOICES} choices for all {len(found)} prompts together")
    requests = _inference_requests(gateway, found, given)
    parsers = tuple(parser() if parser else None for _ in requests)
    return CheckedBody(texts, given, requests, CompletionShape(chat, name), parsers)


async def rendered(job: Job, texts: Texts, parsed: Mapping[str, Any], tools: Tools | None) -> Prompt:
    """Return the body's conversation, rendered by the model's template."""
    messages, settings = checked_messages(parsed.get("messages")), template_settings(parsed)
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
    found = await whole(call.gateway, call.caller, checked.requests, given.n)
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
        async with aclosing(parts(call.gateway, call.caller, checked.requests, given.n)) as coming:
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


def checked_prompts(value: Any) -> list[str | list[int]]:
    """Return the prompts of a completion, each a text or a list of ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and not isinstance(value[0], (str, list))):
        return [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_PROMPTS:
        raise refused("prompt", value, f"a text, a list of token ids, or 1 to {MOST_PROMPTS} of these")
    if not all(isinstance(each, type(value[0])) for each in value):
        raise refused("prompt", value, "only texts, or only lists of token ids")
    return list(value)


def checked_messages(value: Any) -> list[dict[str, Any]]:
    """Return messages for templates, each with one text as its content."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_MESSAGES:
        raise refused("messages", value, f"a list of 1 to {MOST_MESSAGES} messages")
    return [_message(each) for each in value]


def _message(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise refused("messages", value, "objects with a role and content")
    if value.get("function_call"):
        raise refused("messages", "function_call", "tool_calls, its newer name")
    role = RENAMED.get(value["role"], value["role"])
    if role not in ROLES:
        raise refused("messages", value["role"], f"the roles {', '.join((*ROLES, *RENAMED))}")
    found = {**value, "role": role, "content": _content(value.get("content"))}
    if value.get("tool_calls"):
        return {**found, "tool_calls": told_calls(value["tool_calls"])}
    found.pop("tool_calls", None)  # templates test for its presence
    return found


def _content(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused("messages", value, "content that is a text or a list of parts")
    return "\n".join(map(_part, value))  # like vLLM


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else "text"
    text = part.get(TEXTS.get(kind)) if isinstance(part, dict) and isinstance(kind, str) else part
    if not isinstance(text, str):
        raise refused("messages", kind, "content parts of type text: this model reads only text")
    return text


def template_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's settings other than the messages."""
    given, add = body.get("chat_template_kwargs"), body.get("add_generation_prompt")
    if not isinstance(given, (dict, type(None))):
        raise refused("chat_template_kwargs", given, "an object")
    if not isinstance(add, (bool, type(None))):
        raise refused("add_generation_prompt", add, "true or false")
    effort, thinking = body.get("reasoning_effort"), {}
    if not isinstance(effort, (str, type(None))):
        raise refused("reasoning_effort", effort, "a text")
    if effort is not None:
        thinking = {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
    return {**thinking, **(given or {}), "add_generation_prompt": add is not False}


async def parts(
    gateway: Gateway, caller: Caller, requests: Sequence[InferenceRequest], n: int
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Yield chunks with the index of their choice, in order of arrival. `n` choices share a prompt."""
    if len(requests) == 1:
        async with gateway.stream(requests[0], caller) as stream:
            async for chunk in stream:
                yield 0, chunk
        return
    came: asyncio.Queue[tuple[int, Chunk | Exception]] = asyncio.Queue(1)  # waits for a slow reader
    begun = [asyncio.Event() for _ in requests[::n]]

    async def one(index: int) -> None:
        try:
            if index % n:
                await begun[index // n].wait()
            async with gateway.stream(requests[index], caller) as stream:
                async for chunk in stream:
                    begun[index // n].set()
                    await came.put((index, chunk))
        except Exception as error:
            await came.put((index, error))

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(requests))]
    try:
        left = len(requests)
        while left:
            index, found = await came.get()
            if isinstance(found, Exception):
                raise found
            yield index, found
            left -= bool(found.finish_reason)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def whole(gateway: Gateway, caller: Caller, requests: Sequence[InferenceRequest], n: int) -> list[Chunk]:
    """Return the whole answers in the order of the requests."""
    found: list[list[Chunk]] = [[] for _ in requests]
    async with aclosing(parts(gateway, caller, requests, n)) as coming:
        async for index, chunk in coming:
            found[index].append(chunk)
    return [Completion.join(each) for each in found]
