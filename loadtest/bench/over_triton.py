"""Runs a competitor: the real server over gRPC, unary or streaming."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from covey.server import Server
from covey_client import Client
from covey_client.response import Completion
from loadtest.bench.work import Answer, Ask, Run

UNARY, STREAM = "covey_unary", "covey"
TIMEOUT = 300.0


class OverTriton:
    """Asks the server in a closed loop. `settings` go into every request in addition to the Ask's."""

    def __init__(
        self,
        server: Server,
        name: str,
        *,
        stream: bool,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self._stream = stream
        self._client = Client(server.grpc_url, model=STREAM if stream else UNARY, timeout=TIMEOUT)
        self._settings = dict(settings or {})
        self.close = self._client.close

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        with ThreadPoolExecutor(concurrency) as callers:
            started = time.perf_counter()
            answers = tuple(callers.map(partial(self._answer, tenant), asks))
            return Run(answers, time.perf_counter() - started)

    def _answer(self, tenant: str, ask: Ask) -> Answer:
        given: dict[str, Any] = {"max_tokens": ask.max_tokens, "temperature": ask.temperature, "seed": ask.seed}
        given |= {"tenant": tenant, **ask.settings, **self._settings}
        first, prompt, started = 0.0, ask.ids or ask.text, time.perf_counter()
        if self._stream:
            with self._client.stream(prompt, **given) as stream:
                chunks = []
                for chunk in stream:
                    chunks.append(chunk)
                    if not first and chunk.tokens:
                        first = time.perf_counter() - started
                whole = Completion.join(chunks)
        else:
            whole = self._client.generate(prompt, **given)
        seconds = time.perf_counter() - started
        usage = whole.usage
        drafted, accepted = usage.draft_tokens, usage.accepted_draft_tokens
        return Answer(whole.tokens, seconds, drafted, accepted, usage.acceptance_histogram, first)
