"""Renders a conversation as a prompt by a model's chat template. Knows no tokenizer and no server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from covey_client.errors import InvalidRequest

WITH_TOOLS = "tool_use"  # transformers' name of a second template
# Errors that templates raise for messages that they are not meant for.
WRONG = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Template:
    """The rule by which messages become a prompt."""

    source: str
    tokens: dict[str, str] = field(default_factory=dict)  # bos_token and the like, which templates name
    with_tools: str = ""  # the source for conversations with tools; "" if one source serves both

    def render(self, messages: Sequence[Mapping[str, Any]], /, **settings: Any) -> str:
        """Render the messages; `settings` are for the template, which may take any. A template may use any memory and
        time: render an untrusted one within `rendering.bounded`."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        environment.filters["tojson"] = _json
        known = {"add_generation_prompt": True, **settings, **self.tokens, "messages": messages}
        source = self.with_tools if self.with_tools and settings.get("tools") else self.source
        try:
            return environment.from_string(source).render(known)
        except WRONG as error:
            raise InvalidRequest(f"template: {error}") from None


def of_folder(folder: Path) -> Template:
    """Return the chat template of a Hugging Face folder. Raises InvalidRequest."""
    try:
        settings: dict[str, Any] = dict(
            json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).items()
        )
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"template: {folder} has no readable tokenizer_config.json ({error})") from None
    separate, source, with_tools = folder / "chat_template.jinja", settings.get("chat_template"), None
    if isinstance(source, list):  # several, by name
        named = {str(entry.get("name")): entry.get("template") for entry in source if isinstance(entry, dict)}
        source, with_tools = named.get("default"), named.get(WITH_TOOLS)
    if separate.is_file():
        beside = folder / "additional_chat_templates" / f"{WITH_TOOLS}.jinja"
        source = separate.read_text(encoding="utf-8")
        with_tools = beside.read_text(encoding="utf-8") if beside.is_file() else None
    if not isinstance(source, str):
        raise InvalidRequest(f"template: the tokenizer in {folder} has no chat template")
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        tokens[name] = str(value.get("content", "") if isinstance(value, dict) else value or "")
    return Template(source, tokens=tokens, with_tools=with_tools if isinstance(with_tools, str) else "")


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the value as JSON like transformers' own filter: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """The tag `{% generation %}`, which marks an assistant's words for training; its contents are rendered."""

    tags = {"generation"}  # noqa: RUF012 - as the class above declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)
