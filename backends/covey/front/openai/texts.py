"""The chat template and tokenizer of one target, as the front uses them: workers do what takes long, and what each
token shows is cached here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from covey.front.fair_queue import Job
from covey.front.openai.forms import Form
from covey.front.openai.marks import Marks
from covey.front.openai.pieces import Piece, Pieces
from covey.front.openai.text_processor import Prompt, tokenizer
from covey.front.openai.workers import Workers
from covey_client.errors import InvalidRequest

OWN = Job("", 0)  # the front's, whose answers serve everybody from then on


class Texts:
    """Reads one target's folder when a request first needs it."""

    def __init__(self, folder: str, workers: Workers) -> None:
        self._folder, self._workers = folder, workers
        self._thread = ThreadPoolExecutor(1, "covey-pieces")
        self._form: Form | InvalidRequest | None = None
        self._marks: Marks | None = None

    async def chat(self, job: Job, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> Prompt:
        """Return a conversation as tokens. Raises InvalidRequest without a template, or if it refuses."""
        found: Prompt = await self._workers.ask(job, self._folder, "chat", messages, settings)
        return found

    async def encode(self, job: Job, text: str, *, special: bool) -> tuple[int, bytes]:
        """Return how many tokens the text has, and all of them as JSON: writing a million would keep the event loop."""
        count, ids = await self._workers.ask(job, self._folder, "encode", text, special)
        return count, ids

    async def decode(self, job: Job, ids: Sequence[int]) -> str:
        return str(await self._workers.ask(job, self._folder, "decode", ids))

    async def form(self) -> Form:
        """Return how the model writes tool calls. Raises InvalidRequest where its template has no known form."""
        if self._form is None:
            try:
                self._form = await self._workers.ask(OWN, self._folder, "form")
            except InvalidRequest as error:
                self._form = error
        if isinstance(self._form, InvalidRequest):
            raise self._form
        return self._form

    async def marks(self) -> Marks:
        """Return the marks that a grammar can name, which are those within the model's own vocabulary."""
        if self._marks is None:
            self._marks = await self._workers.ask(OWN, self._folder, "marks")
        return self._marks

    async def pieces(self, ids: Collection[int]) -> dict[int, Piece]:
        """Return each token's own text and bytes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: {each: self._pieces.of(each) for each in ids})

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(tokenizer(Path(self._folder)))
