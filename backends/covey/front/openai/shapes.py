"""Writes answers in OpenAI's form, with vLLM's `metrics.speculative_decoding` at the root."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from covey.front.openai.delta import Delta
from covey.front.openai.pieces import Offsets, Piece
from covey.front.openai.tool_calls import joined
from covey.process.log_about import only
from covey_client.response import Chunk, Usage

FINISH = {"eos": "stop"}  # the other finish reasons have OpenAI's names already


def log_probs(chat: bool, chunk: Chunk, pieces: Mapping[int, Piece], offsets: Offsets) -> dict[str, Any]:
    """Return the log-probabilities of one chunk's tokens. `pieces` has all ids; `offsets` has seen the choice's earlier
    tokens. A prompt's come first, except for its first token, which has none."""
    own = [pieces[token] for token in (*chunk.prompt_ids, *chunk.tokens)]
    if chat:
        if chunk.finish_reason == "eos":
            own = own[:-1]  # OpenAI's chats omit the token that ends them
        tops = [[_entry(pieces[token], value) for token, value in place] for place in chunk.top]
        found = zip(own, chunk.log_probs, tops)
        content = [{**_entry(piece, value), "top_logprobs": top} for piece, value, top in found]
        return {"content": content, "refusal": None}
    first = [None] if chunk.prompt_ids else []
    places = (*chunk.prompt_top, *chunk.top)
    likeliest = [{pieces[token].token: value for token, value in place} for place in places]
    return {
        "tokens": [piece.token for piece in own],
        "token_logprobs": [*first, *chunk.prompt_log_probs, *chunk.log_probs],
        "top_logprobs": [*first, *likeliest] if chunk.top_ids or chunk.prompt_top_ids else None,
        "text_offset": offsets.of(own),
    }


def _entry(piece: Piece, value: float) -> dict[str, Any]:
    return {"token": piece.token, "logprob": value, "bytes": list(piece.raw)}


@dataclass
class CompletionShape:
    """The JSON of one request's answer, whole or in parts."""

    chat: bool
    model: str
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{only() or uuid.uuid4().hex}"

    def whole(
        self, chunks: Sequence[Chunk], found: Sequence[dict[str, Any] | None], deltas: Sequence[Delta], n: int
    ) -> dict[str, Any]:
        """Return the whole answer. `chunks` are the choices' answers, `found` their log-probabilities, `deltas` their
        parsed contents. Each prompt has `n` choices."""
        choices = []
        for index, (chunk, probabilities, each) in enumerate(zip(chunks, found, deltas)):
            content: dict[str, Any] = {"text": each.content}
            if self.chat:
                words = each.content or (None if each.tool_calls or each.reasoning else "")
                content = {"message": {"role": "assistant", "content": words, "refusal": None}}
                if each.reasoning:
                    content["message"]["reasoning_content"] = each.reasoning
                if each.tool_calls:
                    content["message"]["tool_calls"] = joined(each.tool_calls)
            choices.append(self._choice(index, content, chunk, each.finish_reason, probabilities))
        return {**self._root("", choices), "usage": usage([chunk.usage for chunk in chunks], n), **metrics(chunks)}

    def part(
        self, index: int, chunk: Chunk, found: dict[str, Any] | None, delta: Delta, *, first: bool
    ) -> dict[str, Any]:
        """Return one event of a stream."""
        content: dict[str, Any] = {"text": delta.content}
        if self.chat:
            content = {"delta": {"role": "assistant"} if first else {}}
            if delta.tool_calls:
                content["delta"]["tool_calls"] = delta.tool_calls
            if delta.reasoning:
                content["delta"]["reasoning_content"] = delta.reasoning
            if delta.content or not (delta.tool_calls or delta.reasoning):
                content["delta"]["content"] = delta.content
        return self._root(".chunk", [self._choice(index, content, chunk, delta.finish_reason, found)])

    def totals(self, chunks: Sequence[Chunk], n: int) -> dict[str, Any]:
        """Return the event after a stream's last choice. `chunks` are the choices' last ones."""
        return {**self._root(".chunk", []), "usage": usage([chunk.usage for chunk in chunks], n), **metrics(chunks)}

    def _root(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"chat.completion{kind}" if self.chat else "text_completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.model, "choices": choices}

    def _choice(
        self, index: int, content: dict[str, Any], chunk: Chunk, finish_reason: str, found: dict[str, Any] | None
    ) -> Any:
        reason = FINISH.get(finish_reason, finish_reason) or None
        own = {"seed": chunk.seed, **({"slo_attainment": chunk.slo_attainment} if chunk.slo_attainment else {})}
        return {"index": index, **content, "logprobs": found, "finish_reason": reason, **(own if reason else {})}


def usage(found: Sequence[Usage], n: int) -> dict[str, Any]:
    """Return OpenAI's `usage`. A prompt counts once, regardless of its choices."""
    prompt, output = sum(each.input_tokens for each in found[::n]), sum(each.output_tokens for each in found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(each.reused_tokens for each in found[::n])},
    }


def metrics(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Return the drafting figures of all choices together; zeros if nothing was drafted."""
    found = [chunk.usage for chunk in chunks if chunk.usage.draft_tokens]
    drafted, accepted = sum(each.draft_tokens for each in found), sum(each.accepted_draft_tokens for each in found)
    histogram = [sum(place) for place in zip_longest(*(each.acceptance_histogram for each in found), fillvalue=0)]
    steps = sum(histogram)
    drafting = {
        "mean_acceptance_length": sum(count * (place + 1) for place, count in enumerate(histogram)) / max(1, steps),
        "draft_acceptance_rate": accepted / max(1, drafted),
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
    }
    return {"metrics": {"speculative_decoding": drafting}}
