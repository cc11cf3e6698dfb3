"""One target's chat template and tokenizer, read when a request first needs them.

A chat's prompt is made of tokens here and not by `covey`, because templates write the special tokens that a tokenizer
would otherwise add a second time. One thread does the work, so that the front goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from covey.errors import SettingError
from covey_client.chat import Template
from covey_client.errors import InvalidRequest, ServerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")
UNFINISHED = "\ufffd"  # what the bytes of half a character decode to


class Texts:
    """Of one target's folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._worker = ThreadPoolExecutor(1, "covey-texts")
        self._tokenizer: Tokenizer | None = None
        self._template: Template | None = None

    async def chat(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> list[int]:
        """The tokens of a conversation. Raises InvalidRequest where the model has no template, or refuses."""
        return await self._apart(lambda: self._encode(self._render(messages, settings), special=False))

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return await self._apart(lambda: self._encode(text, special=special))

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._apart(lambda: str(self._read().decode(ids, skip_special_tokens=False)))

    async def pieces(self, ids: Collection[int]) -> dict[int, str]:
        """The text of each token by itself; one that is part of a character is named by its id."""
        return await self._apart(lambda: {each: self._piece(each) for each in ids})

    def context(self) -> int | None:
        """Tokens that the model can read, as its configuration says."""
        try:
            config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
            return int(config.get("text_config", config)["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def _apart(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, act)

    def _render(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> str:
        try:
            if self._template is None:
                self._template = Template.named(str(self._folder))
            return self._template.render(messages, **settings)
        except InvalidRequest as error:
            raise InvalidRequest(f"messages: {error}; /v1/completions takes any prompt", "messages") from None

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("prompt: got a lone surrogate, allowed: Unicode text", "prompt") from None
        return list(self._read().encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def _piece(self, token: int) -> str:
        text = str(self._read().decode([token], skip_special_tokens=False))
        return f"token_id:{token}" if UNFINISHED in text else text

    def _read(self) -> Tokenizer:
        if self._tokenizer is None:
            from covey.tokenization import load_tokenizer  # memory that a front without such requests does not need

            try:
                self._tokenizer = load_tokenizer(self._folder)
            except SettingError as error:
                raise ServerError(str(error)) from None
            if self._tokenizer is None:
                raise InvalidRequest("prompt: this model has no tokenizer; send token ids to /v1/completions", "prompt")
        return self._tokenizer
