"""`covey generate`: one prompt, and its answer as it comes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from covey_client.client import Client
from covey_client.commands import flags
from covey_client.errors import InvalidRequest
from covey_client.response import Completion


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser("generate", help="answer one prompt", description="Answer one prompt.")
    parser.add_argument("prompt", help="the text; - reads it from stdin")
    parser.add_argument("--json", action="store_true", help="print one JSON object when the answer is complete")
    parser.add_argument("--stats", action="store_true", help="token counts and acceptance, on stderr")
    flags.add_connection(parser)
    flags.add_settings(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    prompt = _stdin() if given.prompt == "-" else given.prompt
    with flags.client(given) as client:
        settings = flags.settings(given)
        found = client.generate(prompt, **settings) if given.json else _streamed(client, prompt, settings)
    if given.json:
        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
    if given.stats:
        print(summary(found), file=sys.stderr)
    return 0


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"text_input: stdin is not text ({error.reason})", "text_input") from None


def summary(found: Completion) -> str:
    """Return one line about an answer."""
    usage = found.usage
    drafted = f", {usage.accepted_draft_tokens}/{usage.draft_tokens} drafted tokens accepted" * bool(usage.draft_tokens)
    emulated = ", emulated: the text is no model's" * found.emulated
    return (
        f"{usage.output_tokens} tokens after {usage.input_tokens} ({usage.reused_tokens} reused), "
        f"finish: {found.finish_reason}, seed {found.seed}{drafted}{emulated}"
    )


def _streamed(client: Client, prompt: str, settings: dict[str, Any]) -> Completion:
    chunks = []
    with client.stream(prompt, **settings) as stream:
        for chunk in stream:
            chunks.append(chunk)
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
    print()
    return Completion.join(chunks)
