"""The chat template and tokenizer of one target, as a worker process uses them. Knows no event loop.

Chats are tokenized here, not by `covey`: templates write the special tokens, and a tokenizer would add them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.contracts.errors import SettingError
from covey.front.failures import refused
from covey.front.openai import forms, thinking
from covey.front.openai.forms import Form
from covey.front.openai.marks import Marks
from covey.front.openai.thinking import Thinking
from covey_client.chat import Template, of_folder
from covey_client.errors import CoveyClientError, InvalidRequest, ServerError
from covey_client.rendering import SECONDS, bounded

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    ids: list[int]
    thinking: Thinking | None  # how the answer may begin, if it may begin with thoughts


@dataclass(frozen=True)
class WorkerReply:
    """A worker's answer: a result or an error."""

    found: Any = None
    error: CoveyClientError | None = None


class TextProcessor:
    """Reads one target's folder at first use."""

    def __init__(self, folder: str, prompt_bytes: int, seconds: float = SECONDS) -> None:
        """`prompt_bytes`: longest text to tokenize. `seconds`: longest rendering."""
        self._folder, self._most, self._seconds = Path(folder), prompt_bytes, seconds

    def read(self) -> None:
        """Read the parts that most requests need. An error is raised again for each request that needs the part."""
        with suppress(Exception):
            _ = self._tokenizer, self._template

    def chat(self, messages: list[dict[str, Any]], settings: Mapping[str, Any]) -> Prompt:
        """Return a conversation as tokens. Raises InvalidRequest without a template, or if the template refuses."""
        try:
            text = self._rendered(messages, **settings)
        except InvalidRequest as error:
            raise InvalidRequest(f"messages: {error}; /v1/completions takes any prompt", "messages") from None
        return Prompt(self._encode(text, special=False), self._thinking and self._thinking.after(text))

    def encode(self, text: str, special: bool) -> tuple[int, bytes]:
        """Return the number of tokens in the text, and all of them as JSON."""
        ids = self._encode(text, special=special)
        return len(ids), json.dumps(ids).encode()

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def form(self) -> Form:
        """Return how the model writes tool calls. Raises InvalidRequest if its template has no known form."""
        try:
            return forms.of_template(self._rendered)
        except InvalidRequest as error:
            raise InvalidRequest(f"tools: {error}", "tools") from None

    def marks(self) -> Marks:
        """Return the marks that a grammar can name: those within the model's vocabulary."""
        try:
            most = int(configuration(self._folder)["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ServerError(f"{self._folder}: config.json has no vocab_size: {error}") from None
        added = self._tokenizer.get_added_tokens_decoder()
        found = {
            each.content: number
            for number, each in added.items()
            if number < most and (each.special or _tag(each.content))
        }
        return Marks(found, frozenset(text for text, number in found.items() if added[number].special))

    def _rendered(self, messages: Sequence[Mapping[str, Any]], /, **settings: Any) -> str:
        with bounded(self._seconds):
            return self._template.render(messages, **settings)

    @cached_property
    def _thinking(self) -> Thinking | None:
        added = self._tokenizer.get_added_tokens_decoder().values()
        if any(each.special and each.content == thinking.END for each in added):
            return None  # no text shows it
        return thinking.known([self._template.source, self._template.with_tools, *(each.content for each in added)])

    @cached_property
    def _template(self) -> Template:
        return of_folder(self._folder)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise refused("prompt", "a lone surrogate", "Unicode text") from None
        if size > self._most:
            raise refused("prompt", f"{size} bytes", f"at most {self._most} bytes")
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer(self._folder)


def tokenizer(folder: Path) -> Tokenizer:
    """Load the folder's tokenizer. Raises ServerError, or InvalidRequest if the model has none."""
    from covey.text.tokenization import load_tokenizer  # saves memory in a front without such requests

    try:
        found = load_tokenizer(folder)
    except SettingError as error:
        raise ServerError(str(error)) from None
    if found is None:
        raise InvalidRequest("prompt: this model has no tokenizer; send token ids to /v1/completions", "prompt")
    return found


def configuration(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get("text_config", config)


def _tag(text: str) -> bool:
    """Return whether llguidance treats an added token as no text although it is not special."""
    return text.startswith("<") and text.endswith(">")
