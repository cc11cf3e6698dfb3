"""Answers /v1/responses: a chat whose answer is a list of items. Nothing is stored."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from covey.front.http_bodies import json_object
from covey.front.http_calls import HttpCall
from covey.front.openai import errors, fields, generation, inputs
from covey.front.openai.generation import CheckedBody
from covey.front.openai.items import Event, Output
from covey.front.openai.pieces import Offsets
from covey.front.openai.shapes import metrics
from covey_client.errors import CoveyClientError, InvalidRequest
from covey_client.response import Chunk

INCOMPLETE = "incomplete"
Told = tuple[str, bytes]  # an event's kind and its bytes


class Response:
    """Owns the answer to one request. `body` is its JSON so far."""

    def __init__(self, body: Mapping[str, Any], checked: CheckedBody) -> None:
        given, text, reasoning = checked.given.settings, body.get("text") or {}, body.get("reasoning") or {}
        self._output, self._checked = Output(), checked
        self._number = 0  # number of the next event
        self.body: dict[str, Any] = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "model": checked.shape.model,
            "output": self._output.items,
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": False,
            "temperature": given["temperature"],
            "text": {"format": text.get("format") or {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_logprobs": body.get("top_logprobs") or 0,
            "top_p": given.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None,
        }

    @property
    def begun(self) -> list[Told]:
        """Return the first events."""
        return [self._own(name) for name in ("created", "in_progress")]

    async def events(self, chunk: Chunk) -> list[Told]:
        """Return the events of one chunk, up to the end of the output."""
        delta = generation.delta_of(self._checked.parsers[0], chunk)
        found = await generation.log_probs_of(self._checked, chunk, Offsets())
        events = [self._told(event) for event in self._output.feed(delta, found["content"] if found else ())]
        if delta.finish_reason:
            events += map(self._told, self._output.end(_status(delta.finish_reason)))
        return events

    async def ended(self, call: HttpCall, chunk: Chunk) -> Told:
        """Return the last event. `chunk` is the last chunk, or the whole answer."""
        thought, count = self._output.reasoning, 0
        if thought:
            count, _ = await self._checked.texts.encode(call.job, thought, special=False)
        usage, status = chunk.usage, _status(chunk.finish_reason)
        self.body |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": usage.reused_tokens},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": count},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            },
            "seed": chunk.seed,
            **({"slo_attainment": chunk.slo_attainment} if chunk.slo_attainment else {}),
            **metrics([chunk]),
        }
        return self._own(status)

    def failed(self, error: CoveyClientError) -> Told:
        told = errors.body(error)["error"]
        self.body |= {"status": "failed", "error": {"code": told["code"] or told["type"], "message": told["message"]}}
        return self._own("failed")

    def _own(self, name: str) -> Told:
        return self._told({"type": f"response.{name}", "response": self.body})

    def _told(self, event: Event) -> Told:
        self._number += 1
        return event["type"], json.dumps({**event, "sequence_number": self._number - 1}).encode()


def _status(finish_reason: str) -> str:
    return INCOMPLETE if finish_reason == "length" else "completed"


async def responses(call: HttpCall, body: bytes) -> None:
    parsed = json_object(body)
    try:
        chat = inputs.as_chat(parsed)
        try:
            checked = await generation.check_body(call, chat, chat=True)
            await (_stream if checked.given.stream else _whole)(call, Response(parsed, checked), checked)
        except InvalidRequest as error:
            raise fields.renamed(error, chat, chat=True) from None
    except InvalidRequest as error:
        raise inputs.renamed(error) from None


async def _whole(call: HttpCall, response: Response, checked: CheckedBody) -> None:
    (chunk,) = await generation.whole(call.gateway, call.caller, checked.requests, 1)
    await response.events(chunk)
    await response.ended(call, chunk)
    await call.json(response.body)


async def _stream(call: HttpCall, response: Response, checked: CheckedBody) -> None:
    async def tell(events: Iterable[Told]) -> None:
        for name, data in events:
            await call.event(data, name)

    async def failed(error: CoveyClientError) -> None:
        await tell([response.failed(error)])

    async with call.events(failed):
        async with aclosing(generation.parts(call.gateway, call.caller, checked.requests, 1)) as coming:
            async for _, chunk in coming:
                if not call.begun:
                    await tell(response.begun)
                await tell(await response.events(chunk))
        await tell([await response.ended(call, chunk)])
    await call.end()
