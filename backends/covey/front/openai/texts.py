"""One target's chat template and tokenizer, read when a request first needs them.

A chat's prompt is made of tokens here and not by `covey`, because templates write the special tokens that a tokenizer
would otherwise add a second time. One thread does the work, so that the front goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from covey.errors import SettingError
from covey.front.failures import refused
from covey.front.openai import forms, thinking
from covey.front.openai.forms import Form
from covey.front.openai.marks import Marks
from covey.front.openai.pieces import Piece, Pieces
from covey.front.openai.thinking import Thinking
from covey_client.chat import Template
from covey_client.errors import InvalidRequest, ServerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """A conversation."""

    ids: list[int]
    thinking: Thinking | None  # how an answer may begin, where it may begin with thoughts


class Texts:
    """Of one target's folder."""

    def __init__(self, folder: str, prompt_bytes: int) -> None:
        """`prompt_bytes`: the longest text that is cut into tokens."""
        self._folder, self._most = Path(folder), prompt_bytes
        self._worker = ThreadPoolExecutor(1, "covey-texts")
        self._tokenizer: Tokenizer | None = None
        self._pieces: Pieces | None = None
        self._template: Template | None = None
        self._form: Form | InvalidRequest | None = None
        self._marks: Marks | None = None
        self._thinking: tuple[Thinking | None] | None = None  # once it is known

    async def chat(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> Prompt:
        """A conversation as tokens. Raises InvalidRequest where the model has no template, or refuses."""

        def prompt() -> Prompt:
            text = self._render(messages, settings)
            known = self._read_thinking()
            return Prompt(self._encode(text, special=False), known and known.after(text))

        return await self._apart(prompt)

    async def encode(self, text: str, *, special: bool) -> list[int]:
        return await self._apart(lambda: self._encode(text, special=special))

    async def decode(self, ids: Sequence[int]) -> str:
        return await self._apart(lambda: str(self._read().decode(ids, skip_special_tokens=False)))

    def shown(self, ids: Sequence[int]) -> str:
        """What a text shows of a few tokens, at once: the tokenizer is read by then."""
        return str(self._read().decode(ids, skip_special_tokens=True))

    async def pieces(self, ids: Collection[int]) -> dict[int, Piece]:
        """Each token by itself."""
        return await self._apart(lambda: {each: self._known_pieces().of(each) for each in ids})

    async def form(self) -> Form:
        """How the model writes calls of functions. Raises InvalidRequest where its template knows none."""
        return await self._apart(self._read_form)

    async def marks(self) -> Marks:
        """Those that a grammar can name, of which there are none beyond the model's own vocabulary."""
        return await self._apart(self._read_marks)

    def context(self) -> int | None:
        """Tokens that the model can read, as its configuration says."""
        try:
            return int(self._config()["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None

    def _config(self) -> Any:
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        return config.get("text_config", config)

    async def _apart(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, act)

    def _read_form(self) -> Form:
        if self._form is None:
            try:
                self._form = forms.of_template(self._own_template().render)
            except InvalidRequest as error:
                self._form = InvalidRequest(f"tools: {error}", "tools")
        if isinstance(self._form, InvalidRequest):
            raise self._form
        return self._form

    def _read_marks(self) -> Marks:
        if self._marks is None:
            try:
                most = int(self._config()["vocab_size"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
                raise ServerError(f"{self._folder}: its config.json says no vocab_size: {error}") from None
            added = self._read().get_added_tokens_decoder()
            found = {
                each.content: number
                for number, each in added.items()
                if number < most and (each.special or _tag(each.content))
            }
            self._marks = Marks(found, frozenset(text for text, number in found.items() if added[number].special))
        return self._marks

    def _read_thinking(self) -> Thinking | None:
        if self._thinking is None:
            added = self._read().get_added_tokens_decoder().values()
            template = self._own_template()
            self._thinking = (
                thinking.known([template.source, template.with_tools, *(each.content for each in added)]),
            )
        return self._thinking[0]

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
