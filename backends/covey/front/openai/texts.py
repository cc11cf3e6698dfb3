"""The front's access to one target's chat template and tokenizer. Workers do the slow work, and the texts of single
tokens are cached here."""

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

OWN = Job("", 0)  # work for the front itself, cached for all callers


class Texts:
    """Reads one target's folder when a request first needs it."""

    def __init__(self, folder: str, workers: Workers) -> None:
        self._folder, self._workers = folder, workers
        self._thread = ThreadPoolExecutor(1, "covey-pieces")
        self._form: Form | InvalidRequest | None = None
        self._marks: Marks | None = None

    async def chat(self, job: Job, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> Prompt:
        """Return a conversation as tokens. Raises InvalidRequest without a template, or if the template refuses."""
        found: Prompt = await self._workers.ask(job, self._folder, "chat", messages, settings)
        return found

    async def encode(self, job: Job, text: str, *, special: bool) -> tuple[int, bytes]:
        """Return the number of tokens in the text, and all of them as JSON: writing a million would block the event
        loop."""
        count, ids = await self._workers.ask(job, self._folder, "encode", text, special)
        return count, ids

    async def decode(self, job: Job, ids: Sequence[int]) -> str:
        return str(await self._workers.ask(job, self._folder, "decode", ids))

    async def form(self) -> Form:
        """Return how the model writes tool calls. Raises InvalidRequest if its template has no known form."""
        if self._form is None:
            try:
                self._form = await self._workers.ask(OWN, self._folder, "form")
            except InvalidRequest as error:
                self._form = error
        if isinstance(self._form, InvalidRequest):
            raise self._form
        return self._form

    async def marks(self) -> Marks:
        """Return the marks that a grammar can name: those within the model's vocabulary."""
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
