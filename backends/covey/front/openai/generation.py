"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from covey.front import failures
from covey.front.asked import Asked
from covey.front.door import Door, Gone
from covey.front.http_bodies import json_object
from covey.front.http_calls import Call
from covey.front.openai import choices, errors, fields, prompts
from covey.front.openai.fields import Given
from covey.front.openai.served import Model, served
from covey.front.openai.shapes import Shape, log_probs
from covey_client.errors import InvalidRequest
from covey_client.response import Chunk
from covey_client.wire import MODEL


@dataclass(frozen=True)
class Wanted:
    """A body, checked."""

    model: Model
    given: Given
    asked: tuple[Asked, ...]  # `n` for each prompt
    shape: Shape


async def chat(call: Call, body: bytes) -> None:
    await _answer(call, body, chat=True)


async def completions(call: Call, body: bytes) -> None:
    await _answer(call, body, chat=False)


async def _answer(call: Call, body: bytes, *, chat: bool) -> None:
    try:
        wanted = await _wanted(call.door, body, chat)
        with ExitStack() as held:
            for _ in wanted.asked[1:]:
                held.enter_context(call.door.admitted(call.caller, 0))
            await (_stream if wanted.given.stream else _whole)(call, wanted)
    except InvalidRequest as error:
        raise fields.renamed(error, chat=chat) from None


async def _wanted(door: Door, body: bytes, chat: bool) -> Wanted:
    said = json_object(body)
    given = fields.read(said, chat=chat, most_tokens=door.most_tokens)
    model = served(door, said.get("model"), given.settings.get("target"))
    found: list[str | list[int]] = []
    if chat:
        messages = prompts.messages(said.get("messages"))
        found.append(await model.texts.chat(messages, prompts.template_settings(said)))
    else:
        found += prompts.prompts(said.get("prompt"))
    several = len(found) * given.n > 1
    asked = tuple(_asked(door, model, prompt, given, number, several) for prompt in found for number in range(given.n))
    return Wanted(model, given, asked, Shape(chat, model.name))


def _asked(door: Door, model: Model, prompt: str | list[int], given: Given, number: int, several: bool) -> Asked:
    tensors: dict[str, Any] = {"text_input": [prompt]} if isinstance(prompt, str) else {"input_ids": prompt}
    settings: Mapping[str, Any] = {**given.of_choice(number), **({"target": model.target} if model.target else {})}
    tensors |= {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    tensors["stream"] = [given.stream or several]
    return Asked.of(MODEL, tensors, prompt_bytes=door.prompt_bytes)


async def _whole(call: Call, wanted: Wanted) -> None:
    given, shape = wanted.given, wanted.shape
    found = await choices.whole(call.door, call.caller, wanted.asked, given.n)
    probabilities = [await _log_probs(wanted, chunk, 0) for chunk in found]
    await call.json(shape.whole(found, probabilities, given.n), fields.warning(given.unknown))


async def _stream(call: Call, wanted: Wanted) -> None:
    given, shape, headers = wanted.given, wanted.shape, fields.warning(wanted.given.unknown)
    last: dict[int, Chunk] = {}
    shown = [0] * len(wanted.asked)  # characters
    try:
        async with aclosing(choices.parts(call.door, call.caller, wanted.asked, given.n)) as coming:
            async for index, chunk in coming:
                first = index not in last
                last[index] = chunk
                if first or chunk.text or chunk.finish_reason or given.log_probs:
                    probabilities = await _log_probs(wanted, chunk, shown[index])
                    shown[index] += len(chunk.text)
                    said = shape.part(index, chunk, probabilities, first=first)
                    await call.event(_json({**said, "usage": None} if given.usage else said), headers)
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


async def _log_probs(wanted: Wanted, chunk: Chunk, offset: int) -> dict[str, Any] | None:
    if not wanted.given.log_probs:
        return None
    texts = await wanted.model.texts.pieces({*chunk.tokens, *chunk.top_ids})
    return log_probs(wanted.shape.chat, chunk, texts, offset)


def _in_order(last: Mapping[int, Chunk]) -> Sequence[Chunk]:
    return [last[index] for index in sorted(last)]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
