"""Sources of prompts: `parse("own")` is one. Knows no arrival times.

| source | prompts |
|---|---|
| `own[:DOMAIN,...]` | the project's own (`questions.py`), of all domains or of those named |
| `specbench:FILE` | first turns of Spec-Bench-style JSON lines: `{"category", "turns": [...]}` |
| `synthetic[:INPUT,OUTPUT]` | random token ids: a trace's lengths, or these; the answer is made exactly that long |
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from covey.contracts.errors import SettingError
from loadtest.arrivals import Arrival
from loadtest.questions import Prompt, Prompts

SOURCES = ("own[:DOMAIN,...]", "specbench:FILE", "synthetic[:INPUT,OUTPUT]")
IDS = range(300, 1000)  # ordinary tokens in any tokenizer of a thousand and more


@dataclass(frozen=True, slots=True)
class RequestContent:
    """Describes the content of one request."""

    prompt: Prompt
    max_tokens: int
    exact: bool = False  # the answer has max_tokens, even if the model would end before
    topic: str = ""
    turn: int = 0  # how often the source has already asked all of its prompts


@dataclass(frozen=True)
class AnswerLengths:
    """Limits the default length of answers, and the total length of a request."""

    shortest: int = 16
    longest: int = 64
    context: int = 2048

    def draw(self, rng: random.Random) -> int:
        """Draw a length evenly on a logarithmic scale: a batch's longest answer is several times its median."""
        return round(float(self.shortest * (self.longest / self.shortest) ** rng.random()))


class Source(Protocol):
    def ask(self, arrival: Arrival, rng: random.Random) -> RequestContent: ...


class Texts:
    """Asks all prompts in an order drawn anew for each turn; answers are as long as the trace says, or as `lengths`
    draws."""

    def __init__(self, rows: Sequence[tuple[str, Prompt]], lengths: AnswerLengths) -> None:
        """`rows` are topics and prompts."""
        self._rows, self._lengths = rows, lengths
        self._left: list[tuple[str, Prompt]] = []
        self._turns = 0

    def ask(self, arrival: Arrival, rng: random.Random) -> RequestContent:
        if not self._left:
            self._left = rng.sample(self._rows, len(self._rows))
            self._turns += 1
        topic, prompt = self._left.pop()
        tokens = arrival.output_tokens or self._lengths.draw(rng)
        return RequestContent(prompt, min(tokens, self._lengths.context // 2), topic=topic, turn=self._turns - 1)


@dataclass(frozen=True)
class Synthetic:
    """Makes random token ids of given lengths."""

    input_tokens: int
    output_tokens: int
    lengths: AnswerLengths

    def ask(self, arrival: Arrival, rng: random.Random) -> RequestContent:
        most = self.lengths.context - 1
        output = min(arrival.output_tokens or self.output_tokens, most // 2)
        count = min(arrival.input_tokens or self.input_tokens, most - output)
        return RequestContent(tuple(rng.choices(IDS, k=count)), output, exact=True, topic="synthetic")


def parse(text: str, lengths: AnswerLengths, own: Prompts) -> Source:
    """Return the source of that description; `own` are the project's prompts by domain. Raises SettingError."""
    kind, _, rest = text.partition(":")
    if kind == "own":
        domains = rest.split(",") if rest else list(own)
        unknown = [domain for domain in domains if domain not in own]
        if unknown:
            raise SettingError(f"prompts: no domain {unknown[0]!r}; allowed: {', '.join(own)}")
        return Texts([(domain, prompt) for domain in domains for prompt in own[domain]], lengths)
    if kind == "specbench" and rest:
        return Texts(read_specbench(Path(rest)), lengths)
    if kind == "synthetic":
        parts = rest.split(",") if rest else ["128", str(lengths.longest)]
        if len(parts) == 2 and all(part.isdigit() and int(part) > 0 for part in parts):
            return Synthetic(int(parts[0]), int(parts[1]), lengths)
    raise SettingError(f"prompts: got {text!r}, allowed: {', '.join(SOURCES)}")


def read_specbench(path: Path) -> list[tuple[str, Prompt]]:
    """Return topic and first question of each line."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SettingError(f"prompts: {path} cannot be read: {error}") from None
    if not all(isinstance(row, dict) for row in rows):
        raise SettingError(f"prompts: {path} has lines that are no objects")
    found: list[tuple[str, Prompt]] = [
        (str(row.get("category", "")), str(row["turns"][0])) for row in rows if row.get("turns")
    ]
    if not found:
        raise SettingError(
            f'prompts: {path} holds no prompt in this format: lines of {{"category": NAME, "turns": [TEXT, ...]}}'
        )
    return found
