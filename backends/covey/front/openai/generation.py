"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

from covey.front import failures
from covey.front.asked import NEEDED, Asked
from covey.front.door import Door, Gone
from covey.front.failures import refused
from covey.front.http_bodies import json_object
from covey.front.http_calls import Call
from covey.front.openai import choices, errors, fields, forms, prompts
from covey.front.openai.calls import Reading
from covey.front.openai.fields import Given, of_choice
from covey.front.openai.pieces import Offsets
from covey.front.openai.said import Reader, Said
from covey.front.openai.served import Model, served
from covey.front.openai.shapes import Shape, log_probs, usage
from covey.front.openai.thinking import Hidden, Thinking, Thoughts
from covey.front.openai.tools import Tools, taken
from covey.front.openai.writing import Prompt
from covey.front.turns import Turn
from covey_client.errors import InvalidRequest
from covey_client.response import Chunk
from covey_client.wire import MODEL

GRAMMAR = "grammar_lark"
# What answers are made of. Each output of each response costs Triton, the model and the front some of their time.
OUTPUTS = (
    *NEEDED,
    *("num_input_tokens", "num_output_tokens", "num_reused_tokens", "slo_attainment"),
    *("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_histogram"),
)
LOG_PROBS = ("output_log_probs", "output_top_ids", "output_top_log_probs")
OF_PROMPT = ("prompt_ids", "prompt_log_probs", "prompt_top_ids", "prompt_top_log_probs")


@dataclass(frozen=True)
class Wanted:
    """A body, checked."""

    model: Model
    given: Given
    asked: tuple[Asked, ...]  # `n` for each prompt
    shape: Shape
    readings: tuple[Reader | None, ...]  # of the choices, where they may say more than words


async def chat(call: Call, body: bytes) -> None:
    await _answer(call, body, chat=True)


async def completions(call: Call, body: bytes) -> None:
    await _answer(call, body, chat=False)


async def _answer(call: Call, body: bytes, *, chat: bool) -> None:
    said = json_object(body)
    try:
        wanted = await wanted_of(call, said, chat)
        with ExitStack() as held:
            for _ in wanted.asked[1:]:
                held.enter_context(call.door.admitted(call.caller, 0))
            await (_stream if wanted.given.stream else _whole)(call, wanted)
    except InvalidRequest as error:
        raise fields.renamed(error, said, chat=chat) from None


async def wanted_of(call: Call, said: Mapping[str, Any], chat: bool) -> Wanted:
    door, tools = call.door, None
    if chat:
        tools, said = taken(said)
    given = fields.read(said, chat=chat, most_tokens=door.most_tokens)
    model = served(door, said.get("model"), given.settings.get("target"))
    found: list[str | list[int]] = []
    reading: Callable[[], Reader | None] | None = None
    if chat:
        prompt = await rendered(call.turn, model, said, tools)
        if tools is not None or prompt.thinking is not None:
            given, reading = await _held(given, tools, prompt.thinking, model)
        found.append(prompt.ids)
    else:
        found += prompts.prompts(said.get("prompt"))
    if len(found) * given.n > fields.MOST_CHOICES:
        raise refused("n", given.n, f"at most {fields.MOST_CHOICES} choices of all {len(found)} prompts together")
    asked = _asked(door, model, found, given)
    return Wanted(model, given, asked, Shape(chat, model.name), tuple(reading() if reading else None for _ in asked))


async def rendered(turn: Turn, model: Model, said: Mapping[str, Any], tools: Tools | None) -> Prompt:
    """The conversation in a body as the model's template writes it."""
    messages, settings = prompts.messages(said.get("messages")), prompts.template_settings(said)
    if prompts.with_calls(messages) and (await model.texts.form()).textual:
        messages = prompts.with_textual_arguments(messages)
    if tools is not None:
        settings["tools"] = list(tools.told)
    return await model.texts.chat(turn, messages, settings)


async def _held(
    given: Given, tools: Tools | None, thinking: Thinking | None, model: Model
) -> tuple[Given, Callable[[], Reader | None]]:
    """The settings with the grammar of these tools, behind thoughts, and what reads the answers."""
    form, marks = await model.texts.form() if tools else None, await model.texts.marks()
    answer, rules = forms.said(given.settings), ""
    if tools and form:
        rules = forms.grammar(form, tools, marks, thinking, answer)
    elif thinking and answer:
        rules = forms.behind_thoughts(thinking, answer, marks)
    if rules:
        others = {name: value for name, value in given.settings.items() if name not in fields.GRAMMAR_FIELDS}
        given = replace(given, settings={**others, GRAMMAR: rules})

    between = (
        {marks.ids[each]: each for each in (thinking.begin, thinking.end) if each in marks.hidden} if thinking else {}
    )
    hidden = Hidden(between, await model.texts.shows()) if between else None

    def reading() -> Reader | None:
        calls = Reading(form, marks, tools) if tools and form else None
        return Thoughts(thinking, calls, hidden) if thinking else calls

    return given, reading


def _asked(door: Door, model: Model, found: Sequence[str | list[int]], given: Given) -> tuple[Asked, ...]:
    """`n` for each prompt. What they have in common is checked once."""
    settings: Mapping[str, Any] = {**given.settings, **({"target": model.target} if model.target else {})}
    common = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    common["stream"] = [given.stream or len(found) * given.n > 1]
    outputs = (*OUTPUTS, *(LOG_PROBS if given.log_probs else ()), *(OF_PROMPT if fields.SCORES in settings else ()))
    first, *others = (
        Asked.of(
            MODEL, {**_tensor(prompt), **({} if place else common)}, prompt_bytes=door.prompt_bytes, outputs=outputs
        )
        for place, prompt in enumerate(found)
    )
    asked = [first, *(replace(first, prompt=each.prompt) for each in others)]
    numbers = range(given.n)
    return tuple(replace(each, settings=of_choice(each.settings, number)) for each in asked for number in numbers)


def _tensor(prompt: str | list[int]) -> dict[str, list[Any]]:
    return {"text_input": [prompt]} if isinstance(prompt, str) else {"input_ids": prompt}


async def _whole(call: Call, wanted: Wanted) -> None:
    given, shape = wanted.given, wanted.shape
    found = await choices.whole(call.door, call.caller, wanted.asked, given.n)
    probabilities = [await log_probs_of(wanted, chunk, Offsets()) for chunk in found]
    said = [said_in(reading, chunk) for reading, chunk in zip(wanted.readings, found)]
    await call.json(shape.whole(found, probabilities, said, given.n), fields.warning(given))


async def _stream(call: Call, wanted: Wanted) -> None:
    given, shape, headers = wanted.given, wanted.shape, fields.warning(wanted.given)
    last: dict[int, Chunk] = {}
    offsets = [Offsets() for _ in wanted.asked]
    try:
        async with aclosing(choices.parts(call.door, call.caller, wanted.asked, given.n)) as coming:
            async for index, chunk in coming:
                first = index not in last
                last[index] = chunk
                said = said_in(wanted.readings[index], chunk)
                if first or not said.empty or given.log_probs:
                    probabilities = await log_probs_of(wanted, chunk, offsets[index])
                    part = shape.part(index, chunk, probabilities, said, first=first)
                    if given.usage:
                        part["usage"] = usage([chunk.usage], 1) if given.running_usage else None
                    await call.event(_json(part), headers)
    except Gone:
        raise
    except Exception as problem:
        if not call.begun:
            raise
        await call.event(_json(errors.body(failures.told("an answer over HTTP", problem))))
    else:
        if given.usage:
            await call.event(_json(shape.totals(_in_order(last), given.n)))
    await call.event(b"[DONE]")
    await call.end()


def said_in(reading: Reader | None, chunk: Chunk) -> Said:
    return Said(chunk.text, finish_reason=chunk.finish_reason) if reading is None else reading.feed(chunk)


async def log_probs_of(wanted: Wanted, chunk: Chunk, offsets: Offsets) -> dict[str, Any] | None:
    if not wanted.given.log_probs:
        return None
    ids = {*chunk.tokens, *chunk.top_ids, *chunk.prompt_ids, *chunk.prompt_top_ids}
    pieces = await wanted.model.texts.pieces(ids)
    return log_probs(wanted.shape.chat, chunk, pieces, offsets)


def _in_order(last: Mapping[int, Chunk]) -> Sequence[Chunk]:
    return [last[index] for index in sorted(last)]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
