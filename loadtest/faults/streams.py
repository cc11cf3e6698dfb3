"""Clients that ask the same again and again while processes die: every answer is known beforehand."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey_client import Client, CoveyClientError, DeadlineExceeded, Overloaded
from loadtest.faults.launched import Launched

PROMPTS = (
    "User: Do you like films?\nAssistant:",
    "def read_lines(path):\n",
    "English: Good night.\nGerman:",
    "User: What did you do at the weekend?\nAssistant:",
    "Question: What is 12 + 30?\nAnswer:",
)
GRACE_SECONDS = 2.0  # beyond a deadline, on a machine that does much else
DOORS = ("grpc", "http", "unary")  # streams of both protocols, and answers in one piece


@dataclass(frozen=True)
class Ask:
    """What one client asks."""

    door: str
    prompt: str
    settings: dict[str, Any]

    def answered(self, clients: dict[str, Client], seconds: float, *, resume: bool = True) -> tuple[int, ...]:
        """Through whatever happens meanwhile, or until it breaks. Raises CoveyClientError."""
        client = clients[self.door]
        if self.door == "unary":
            return client.generate(self.prompt, timeout=seconds, resume=resume, **self.settings).tokens
        with client.stream(self.prompt, timeout=seconds, resume=resume, **self.settings) as stream:
            return tuple(token for chunk in stream for token in chunk.tokens)


@dataclass(frozen=True)
class Answer:
    """What became of an ask: `right`, `wrong`, `late` or, with the reason, `error`."""

    door: str
    outcome: str
    seconds: float
    error: str = ""
    began: float = 0.0  # after the first


def asks(count: int, tokens: int, seed: int, drafters: Sequence[str]) -> list[Ask]:
    """Some name their drafter, so that each has work: one does in any case."""
    drawn = random.Random(seed)
    found = []
    for index in range(count):
        settings: dict[str, Any] = {"max_tokens": tokens, "min_tokens": tokens, "seed": drawn.getrandbits(32)}
        settings["temperature"] = 0.8 if drawn.random() < 0.7 else 0.0
        speculation = drawn.choice(("", "off", "fixed:2", "fixed:4"))
        settings |= {"speculation": speculation} if speculation else {}
        settings |= {"drafter": drawn.choice(drafters)} if drafters and drawn.random() < 0.7 else {}
        if index < len(drafters):
            settings |= {"speculation": "fixed:2", "drafter": drafters[index]}
        found.append(Ask(DOORS[index % len(DOORS)], drawn.choice(PROMPTS), settings))
    return found


class Streams:
    """One thread for each ask, until stopped."""

    def __init__(
        self, server: Launched, wanted: Sequence[Ask], deadline: float, known: Sequence[tuple[int, ...]] = ()
    ) -> None:
        """`known`: what `undisturbed` of earlier ones has learnt."""
        self._clients = {
            "grpc": Client(server.front_grpc),
            "http": Client(server.front_http, transport="http"),
            "unary": Client(server.front_grpc, model="covey_unary"),
        }
        self._deadline = deadline
        self._asks = wanted
        self.known: list[tuple[int, ...]] = list(known) or [()] * len(wanted)
        self.answers: list[Answer] = []
        self.refused = 0
        self._began = 0.0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def undisturbed(self) -> None:
        """Learn every answer, all at once and nothing happening. Raises CoveyClientError."""
        problems: list[CoveyClientError] = []

        def learn(index: int) -> None:
            try:
                self.known[index] = self._asks[index].answered(self._clients, self._deadline)
            except CoveyClientError as error:
                problems.append(error)

        self._run(learn)
        for thread in self._threads:
            thread.join()
        if problems:
            raise problems[0]

    def start(self) -> None:
        """Ask again and again, and go on with what breaks."""
        self._began = time.monotonic()
        self._run(self._again_and_again)

    def once(self) -> None:
        """Ask once, and go on with nothing."""
        self._began = time.monotonic()
        self._run(lambda index: self._answer(index, resume=False))

    def stop(self) -> list[str]:
        """Ask nothing more and wait for the answers; returns who hangs."""
        self._ended.set()
        until = time.monotonic() + self._deadline + GRACE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        hung = [f"stream {thread.name} hangs" for thread in self._threads if thread.is_alive()]
        for client in self._clients.values():
            client.close()
        return hung

    def _run(self, act: Any) -> None:
        self._threads = [
            threading.Thread(target=act, args=(index,), name=str(index), daemon=True)
            for index in range(len(self._asks))
        ]
        for thread in self._threads:
            thread.start()

    def _again_and_again(self, index: int) -> None:
        while not self._ended.is_set():
            self._ended.wait(self._answer(index))

    def _answer(self, index: int, *, resume: bool = True) -> float:
        """Record what becomes of an ask; returns after how many seconds to ask again."""
        ask, began, error, rest = self._asks[index], time.monotonic(), "", 0.0
        try:
            right = ask.answered(self._clients, self._deadline, resume=resume) == self.known[index]
            outcome = "right" if right else "wrong"
        except DeadlineExceeded as problem:
            outcome, error = "late", str(problem)
        except CoveyClientError as problem:
            if resume and isinstance(problem, Overloaded):  # before anything came: who is told to come again does
                self.refused += 1
                return min(problem.retry_after or 1.0, 5.0)
            outcome, error, rest = "error", f"{type(problem).__name__}: {problem}", 0.5
        seconds = time.monotonic() - began
        if seconds > self._deadline + GRACE_SECONDS:
            outcome = "late"
        self.answers.append(Answer(ask.door, outcome, seconds, error, began - self._began))
        return rest
