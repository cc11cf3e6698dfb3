"""Describes the requests and answers of benches, and the interface of competitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.questions import Prompt


@dataclass(frozen=True, slots=True)
class Ask:
    """Describes one request, the same for every competitor."""

    text: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    domain: str = ""
    ids: tuple[int, ...] = ()  # the prompt if it is not text
    settings: Mapping[str, object] = field(default_factory=dict)  # other fields of the request


def asked(prompt: Prompt, max_tokens: int, temperature: float, seed: int, domain: str, **fields: Any) -> Ask:
    """Return the request for a prompt of either kind."""
    text, ids = (prompt, ()) if isinstance(prompt, str) else ("", prompt)
    return Ask(text, max_tokens, temperature, seed, domain, ids, **fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds the outcome of one Ask for one competitor; times are in seconds from the moment it was asked."""

    tokens: tuple[int, ...]
    seconds: float
    drafted: int = 0
    accepted: int = 0
    lengths: tuple[int, ...] = ()  # place j: drafts of which j tokens were accepted
    first: float = 0.0  # seconds to the first token of a stream


@dataclass(frozen=True, slots=True)
class Run:
    """Holds the answers to a set of requests, in the order of the asks."""

    answers: tuple[Answer, ...]
    seconds: float  # from the first ask to the last answer

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def rate(self) -> float:
        """Return the tokens per second."""
        return self.tokens / self.seconds

    @property
    def at_work(self) -> float:
        """Return the mean number of requests in flight: some callers end before others."""
        return sum(answer.seconds for answer in self.answers) / self.seconds


class Competitor(Protocol):
    """Answers a set of requests in their order, with a fixed concurrency."""

    name: str

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        """Answer the requests. `tenant` keeps a run from finding an earlier run's prompts in a prefix cache."""
        ...
