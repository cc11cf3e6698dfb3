"""`covey chat`: a conversation on the terminal. Ctrl-C ends an answer, Ctrl-D the conversation."""

from __future__ import annotations

import argparse
import contextlib
import sys

from covey_client.chat import BUILT_IN, Chat, Template
from covey_client.client import Client
from covey_client.commands import flags
from covey_client.errors import CoveyClientError, InvalidRequest, Overloaded

HELP = "/reset forgets the conversation, /quit ends it; Ctrl-C ends an answer"


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser("chat", help="a conversation", description="A conversation on the terminal.")
    parser.add_argument("--system", default="", metavar="TEXT", help="what the conversation starts from")
    parser.add_argument(
        "--template",
        default="plain",
        metavar="NAME",
        help=f"how messages become a prompt: {', '.join(BUILT_IN)}, a Jinja file, or a Hugging Face model folder",
    )
    flags.add_connection(parser)
    flags.add_settings(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and editing
    chat = Chat(Template.named(given.template), given.system)
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    with flags.client(given) as client:
        while True:
            try:
                said = input("> " if sys.stdin.isatty() else "").strip()
            except (EOFError, KeyboardInterrupt):
                return 0
            if said == "/quit":
                return 0
            if said == "/reset":
                chat.forget()
            elif said:
                _exchange(client, chat, said, given)


def _exchange(client: Client, chat: Chat, said: str, given: argparse.Namespace) -> None:
    settings = flags.settings(given)
    settings["stop_words"] = [*settings.get("stop_words", ()), *chat.stop_words]
    answer = ""
    try:
        with client.stream(chat.prompt(said), **settings) as stream:
            for chunk in stream:
                shown = chunk.text if answer else chunk.text.lstrip()
                answer += shown
                sys.stdout.write(shown)
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(" [ended]", end="", file=sys.stderr, flush=True)
    except (InvalidRequest, Overloaded) as error:  # the conversation may go on
        if not sys.stdin.isatty():
            raise
        print(f"covey: {error}", file=sys.stderr)
        return
    except CoveyClientError:
        print()
        raise
    print()
    chat.remember(said, answer.strip())
