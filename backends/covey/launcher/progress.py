"""Reports a start to the user, line by line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from covey.contracts import profile
from covey.launcher import preflight
from covey.launcher.options import Options, reachable
from covey.text import model_folder
from covey.text.model_folder import has_file

FROM_TEXT = ("draft_ngram", "draft_suffix")
CHAT = '"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0'


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line on standard error or another stream. A full disk or a closed pipe must not end the server."""
    with contextlib.suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)


class LoadProgress:
    """Prints a line for each loaded model, as a server's watcher."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def __call__(self, loaded: tuple[str, ...], models: tuple[str, ...]) -> None:
        for name in loaded:
            if name not in self._printed:
                self._printed.add(name)
                say(f"loaded {name} ({len(self._printed)}/{len(models)})")


def _command() -> str:
    """Return the command that calls `covey` here: its name if it is on PATH, otherwise its path."""
    beside = Path(sys.executable).with_name("covey")
    if shutil.which("covey") or not beside.is_file():
        return "covey"
    return _short(beside)


def _drafters(options: Options, left_out: Mapping[str, str]) -> str:
    """Return lines about drafters, and about left-out ones."""
    misfits = dict.fromkeys(left_out.values())
    names = {misfit: ", ".join(name for name in left_out if left_out[name] == misfit) for misfit in misfits}
    own = {options.drafter_entry(): f" ({options.drafter})"} if options.drafter else {}
    drafting = profile.without(options.deployment(), left_out).speculation.drafters
    trained = any(name not in FROM_TEXT for name in drafting)
    command = f"{sys.executable} -m covey_training drafter --target {options.model} --out drafter --minutes 60"
    advice = f", from earlier text. A small model of this vocabulary drafts better. This makes one: {command}"
    lines = ["", *(f"Left out: {names[misfit]} ({misfit})." for misfit in misfits)]
    if drafting:
        whose = ", ".join(name + own.get(name, "") for name in drafting)
        lines.append(f"Drafting: {whose}{advice if options.model and not trained else '.'}")
    return "\n".join(lines)


def _short(path: Path) -> str:
    """Return a path as it is shortest to read here."""
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)


def _front(options: Options) -> tuple[str, str]:
    """Return a line to paste for OpenAI's API, and the public addresses; empty without a front."""
    if options.front_http_port is None:
        return "", ""
    host, front = reachable(options.front_host), options.deployment().front
    http = f"http://{host}:{options.front_http_port}"
    key = " -H 'Authorization: Bearer KEY'" if front.keys else ""
    folder = preflight.target_folder(options)
    chats = has_file(folder / "config.json") and model_folder.read(folder).has_chat_template
    route, asked = ("chat/completions", CHAT) if chats else ("completions", '"prompt": "Once upon a time"')
    return (
        f"""  curl -s {http}/v1/{route}{key} -d '{{{asked}, "max_tokens": 64}}'\n""",
        f"For untrusted callers: {http}, OpenAI's API at {http}/v1, gRPC {host}:{options.front_grpc_port}.\n",
    )


def ready_message(
    options: Options, log_file: str, left_out: Mapping[str, str] = MappingProxyType({}), serving: str = ""
) -> str:
    """Return the commands to paste. `serving`: the target's type, mode and room from the orchestrator's log."""
    host = reachable(options.host)
    http = f"{host}:{options.http_port}"
    flags = "" if options.grpc_port == Options.grpc_port else f" --url {host}:{options.grpc_port}"
    body = '\'{"text_input": "Once upon a time", "max_tokens": 64'
    emulated = options.deployment().target.emulated
    typed = f"\nThe target is in {serving}." if serving else ""
    if "fast" in serving and options.deployment().target.numerics != "fast":
        typed += " Invariant numerics are not available for it here: texts may differ at near-ties."
    said = "\nIt is emulated: a hash makes the texts and a cost table the timings; no model runs." if emulated else ""
    openai, strangers = _front(options)
    policy = options.deployment().speculation.policy
    serves = f"{_short(preflight.target_folder(options))} by profile {options.profile}, policy {policy}"
    return f"""Covey is ready. It serves {serves}. Log: {log_file}{typed}{said}{_drafters(options, left_out)}

{openai}  curl -s http://{http}/v2/models/covey/generate -d {body}}}'
  curl -sN http://{http}/v2/models/covey/generate_stream -d {body}, "stream": true}}'
  {_command()} generate{flags} "Once upon a time"

{strangers}Metrics: http://{host}:{options.metrics_port}/metrics. Ctrl-C drains and stops."""
