"""Compares servers that differ in a setting and are asked in turns: `python -m loadtest.alternate SETTINGS
SETTINGS`.

    python -m loadtest.alternate target.threads=1 target.threads=2 target.threads=2,GOMP_SPINCOUNT=20000

Each SETTINGS is keys of the profile, by their sections, and variables of the server's environment. The others are
compared with the first one; `""` is the unchanged profile. The speed of a host changes by half within minutes, so
compared requests are sent within seconds, and the table has ratios as well as rates. Within a turn all servers get the
same prompts of the project, of all domains, with the same seeds. Other turns have other prompts.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from covey.contracts.profile import find, written
from covey.server import FREE_PORTS, Options, Server
from covey_client import Client
from covey_client.progress import Steps
from loadtest.arrivals import Arrival
from loadtest.asks import AnswerLengths, Texts
from loadtest.bench.session import Wanted, served
from loadtest.bench.statistics import interval
from loadtest.questions import Prompt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOKENS = 48
LENGTHS = AnswerLengths(TOKENS, TOKENS)


def changed(profile: Mapping[str, Any], settings: str) -> tuple[str, dict[str, str]]:
    """Return the profile with these settings, as TOML, and the environment variables among them."""
    sections = {name: dict(value) if isinstance(value, dict) else value for name, value in profile.items()}
    variables = {}
    for each in filter(None, settings.split(",")):
        name, _, value = each.partition("=")
        section, dot, key = name.partition(".")
        if dot:
            sections.setdefault(section, {})[key] = tomllib.loads(f"value = {value}")["value"]
        else:
            variables[name] = value
    return written(sections), variables


def asks(texts: Sequence[Prompt], turn: int, caller: int) -> Iterator[tuple[Prompt, dict[str, Any]]]:
    """Yield a caller's requests of one turn, without end. No tenant asks twice: its lookups would replay answers."""
    drawn, source = random.Random(f"{turn} {caller}"), Texts([("", text) for text in texts], LENGTHS)
    while True:
        ask = source.ask(Arrival(0.0), drawn)
        yield ask.prompt, {"seed": drawn.getrandbits(31), "tenant": f"{turn} {caller} {ask.turn}"}


def rate(
    url: str, texts: Sequence[Prompt], callers: int, seconds: float, turn: int, settings: Mapping[str, Any]
) -> float:
    """Return the tokens a second of this many callers, each of which asks again when it has its answer."""
    until = time.monotonic() + seconds

    def ask(caller: int) -> float:
        tokens, started, own = 0, time.monotonic(), asks(texts, turn, caller)
        with Client(url) as client:
            while time.monotonic() < until:
                text, more = next(own)
                tokens += len(client.generate(text, min_tokens=TOKENS, max_tokens=TOKENS, **more, **settings).tokens)
        return tokens / (time.monotonic() - started)

    with ThreadPoolExecutor(callers) as threads:
        return sum(threads.map(ask, range(callers)))


def shown(rates: Mapping[str, Sequence[float]]) -> Table:
    """Return a table of medians over the turns: of rates, and of ratios within a turn."""
    table = Table(Column("settings", overflow="fold"), "tokens/s", "over the first", "95 %", "its turns")
    first = next(iter(rates.values()))
    for settings, found in rates.items():
        ratios = [each / base for each, base in zip(found, first)]
        turns = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        median = f"{statistics.median(found):.0f}", f"{statistics.median(ratios):.2f}"
        low, high = interval(ratios, of=statistics.median)
        table.add_row(settings or "as it is", *median, f"{low:.2f} to {high:.2f}", turns)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.alternate", description="servers asked in turns")
    parser.add_argument("settings", nargs="+", metavar="SETTINGS", help="KEY=VALUE, or several with commas between")
    parser.add_argument("--profile", default="", help="name of a profile, or its file (default: that of `make serve`)")
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each server in each turn")
    parser.add_argument("--speculation", default="off", help="off, auto or fixed:K")
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()
    chosen = served(given.profile)
    profile = tomllib.loads(find(chosen["profile"]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        wanted = Wanted(Path(), profile=chosen["profile"], model=chosen["model"])
        urls, texts = {}, [text for known in wanted.prompts().values() for text in known]
        for index, settings in enumerate(given.settings):
            text, variables = changed(profile, settings)
            own = Path(folder) / f"{index}.toml"
            own.write_text(text)
            log = own.with_suffix(".log")
            server = Server(
                Options(**FREE_PORTS, profile=str(own), model=chosen["model"], log_file=log, environment=variables)
            )
            urls[settings] = running.enter_context(server).grpc_url
        rates: dict[str, list[float]] = {settings: [] for settings in urls}
        asked = {"speculation": given.speculation, "temperature": given.temperature}
        with Steps() as bar:
            for settings in bar.track(list(urls) * given.turns, description="turns"):
                turn = len(rates[settings])
                rate(urls[settings], texts, given.callers, 1.0, -1 - turn, asked)  # its processes wake up
                rates[settings].append(rate(urls[settings], texts, given.callers, given.seconds, turn, asked))
    Console().print(shown(rates))


if __name__ == "__main__":
    main()
