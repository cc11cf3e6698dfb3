"""Many answers in events at once, read by threads."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 240.0  # seconds for an answer
CHARACTERS = 40  # that a stream has told which has begun

Body = Mapping[str, Any]


def completion(number: int, tokens: int, **others: Any) -> dict[str, Any]:
    """One that no other number asks for, of so many tokens."""
    prompt = f"User: Tell me {number} things about films.\nAssistant:"
    return {"prompt": prompt, "seed": number, "stream": True, "max_tokens": tokens, "min_tokens": tokens, **others}


def bodies(count: int, tokens: int) -> list[dict[str, Any]]:
    """Completions, chats, several choices at once, and log-probabilities."""
    found = [completion(number, tokens) for number in range(count)]
    for body in found[1::4]:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    for body in found[2::4]:
        body["n"] = 2
    for body in found[3::4]:
        body["logprobs"] = 2
    return found


def post(url: str, body: Body, headers: Mapping[str, str] | None = None) -> Any:
    """The response, open. Raises urllib.error.HTTPError."""
    sent = {"content-type": "application/json", **(headers or {})}
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    request = urllib.request.Request(url + path, json.dumps(body).encode(), sent)
    return urllib.request.urlopen(request, timeout=PATIENCE)


def whole(url: str, body: Body, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    with post(url, {**body, "stream": False}, headers) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@dataclass
class Told:
    """What one stream told."""

    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))  # by choice
    log_probs: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[int, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    error: str = ""
    ended: bool = False  # with [DONE]
    first: float = 0.0  # seconds until its first event

    def take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            self.error = str(event["error"]["message"])
            return
        self.names.add(event["id"])
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in self.finished
            self.texts[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.log_probs[index] += (choice["logprobs"] or {}).get("token_logprobs", ())
            if choice["finish_reason"]:
                self.finished[index] = choice["finish_reason"]


def read(url: str, body: Body, seen: Callable[[Told], None] = lambda _: None) -> Told:
    """One stream; `seen` is called after each event."""
    told, began = Told(), time.monotonic()
    with post(url, body) as answer:
        for line in answer:
            if line.strip() == b"data: [DONE]":
                told.ended = True
            elif line.startswith(b"data: "):
                told.first = told.first or time.monotonic() - began
                told.take(json.loads(line[len(b"data: ") :]))
                seen(told)
    return told


def same(told: Sequence[Told], expected: Sequence[Told]) -> bool:
    """Whether each told the same, to the end and in one answer."""
    for one, other in zip(told, expected, strict=True):
        assert not one.error, one.error
        assert one.ended
        assert len(one.names) == 1
        assert one.texts == other.texts
        assert one.log_probs == other.log_probs
        assert one.finished == other.finished
    return True


class Streams:
    """All of some bodies at once, from the beginning on."""

    def __init__(self, url: str, asked: Sequence[Body]) -> None:
        self._url, self._bodies = url, asked
        self._told: dict[int, Told] = {}
        self._begun = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(asked))]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Wait until all have told something."""
        for _ in self._threads:
            assert self._begun.acquire(timeout=PATIENCE)

    def end(self) -> list[Told]:
        """What they told."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a stream hangs"
        return [self._told[number] for number in range(len(self._bodies))]

    def _run(self, number: int) -> None:
        begun = False

        def seen(told: Told) -> None:
            nonlocal begun
            if not begun and len(told.texts[0]) > CHARACTERS:
                begun = True
                self._begun.release()

        self._told[number] = read(self._url, self._bodies[number], seen)
