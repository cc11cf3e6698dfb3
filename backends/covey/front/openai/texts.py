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
from covey.front.failures import refused
from covey.front.openai import forms
from covey.front.openai.forms import Form, Marks
from covey.front.openai.pieces import Piece, Pieces
from covey_client.chat import Template
from covey_client.errors import InvalidRequest, ServerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")


class Texts:
    """Of one target's folder."""

    def __init__(self, folder: str, prompt_bytes: int) -> None:
        """`prompt_bytes`: the longest text that is cut into tokens."""
        self._folder, self._most = Path(folder), prompt_bytes
        self._worker = ThreadPoolExecutor(1, "covey-texts")
        self._tokenizer: Tokenizer | None = None
        self._pieces: Pieces | None = None
        self._template: Template | None = None
        self._form: tuple[Form, Marks] | InvalidRequest | None = None

    async def chat(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> list[int]:
        """The tokens of a conversation. Raises InvalidRequest where the model has no template, or refuses."""
        return await self._apart(lambda: self._encode(self._render(messages, settings), special=False))

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return await self._apart(lambda: self._encode(text, special=special))

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._apart(lambda: str(self._read().decode(ids, skip_special_tokens=False)))

    async def pieces(self, ids: Collection[int]) -> dict[int, Piece]:
        """Each token by itself."""
        return await self._apart(lambda: {each: self._known_pieces().of(each) for each in ids})

    async def form(self) -> tuple[Form, Marks]:
        """How the model writes calls of functions. Raises InvalidRequest where its template knows none."""
        return await self._apart(self._read_form)

    def context(self) -> int | None:
        """Tokens that the model can read, as its configuration says."""
        try:
            return int(self._config()["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _config(self) -> Any:
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        return config.get("text_config", config)

    async def _apart(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, act)

    def _read_form(self) -> tuple[Form, Marks]:
        if self._form is None:
            try:
                self._form = forms.of_template(self._own_template().render), self._marks()
            except InvalidRequest as error:
                self._form = InvalidRequest(f"tools: {error}", "tools")
        if isinstance(self._form, InvalidRequest):
            raise self._form
        return self._form

    def _marks(self) -> Marks:
        """Those that a grammar can name, of which there are none beyond the model's own vocabulary."""
        try:
            most = int(self._config()["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerError(f"{self._folder}: its config.json says no vocab_size: {error}") from None
        added = {
            each.content: (number, each.special) for number, each in self._read().get_added_tokens_decoder().items()
        }
        ids = {text: number for text, (number, special) in added.items() if number < most and (special or _tag(text))}
        return Marks(ids, frozenset(text for text in ids if added[text][1]))

    def _own_template(self) -> Template:
        if self._template is None:
            self._template = Template.named(str(self._folder))
        return self._template

    def _render(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> str:
        try:
            return self._own_template().render(messages, **settings)
        except InvalidRequest as error:
            raise InvalidRequest(f"messages: {error}; /v1/completions takes any prompt", "messages") from None

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise refused("prompt", "a lone surrogate", "Unicode text") from None
        if size > self._most:
            raise refused("prompt", f"{size} bytes", f"at most {self._most} bytes")
        return list(self._read().encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def _known_pieces(self) -> Pieces:
        if self._pieces is None:
            self._pieces = Pieces(self._read())
        return self._pieces

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


def _tag(text: str) -> bool:
    """Which added tokens llguidance takes for no text, beside those that are special."""
    return text.startswith("<") and text.endswith(">")
