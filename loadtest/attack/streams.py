"""Clients that ask the same again and again while the server is attacked, and know every answer beforehand."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey_client import Client, CoveyClientError, DeadlineExceeded, Overloaded
from loadtest.attack.launched import Launched

QUESTION = "User: Do you like films?\nAssistant:"
PROMPTS = (
    QUESTION,
    "def read_lines(path):\n",
    "English: Good night.\nGerman:",
    "User: What did you do at the weekend?\nAssistant:",
    "Question: What is 12 + 30?\nAnswer:",
)
GRACE_SECONDS = 2.0  # beyond a deadline, on a busy machine
DOORS = ("grpc", "unary")  # streams, and answers in one piece
REST_SECONDS = 0.5  # after an error


@dataclass(frozen=True)
class Question:
    """Asks the question of one client."""

    door: str
    prompt: str
    settings: dict[str, Any]

    def answered(self, clients: dict[str, Client], seconds: float) -> tuple[tuple[int, ...], float]:
        """Return its tokens, and when the first came, in spite of faults. Raises CoveyClientError."""
        client = clients[self.door]
        if self.door == "unary":
            tokens = client.generate(self.prompt, timeout=seconds, resume=True, **self.settings).tokens
            return tokens, time.monotonic()
        with client.stream(self.prompt, timeout=seconds, resume=True, **self.settings) as stream:
            found: list[int] = []
            first = 0.0
            for chunk in stream:
                first = first or time.monotonic()
                found += chunk.tokens
            return tuple(found), first


@dataclass(frozen=True)
class Outcome:
    """Holds the outcome of an ask: `right`, `wrong`, `late` or, with the reason, `error`."""

    door: str
    outcome: str
    seconds: float
    error: str = ""
    began: float = 0.0  # after the first
    wait: float = 0.0  # to the first token, from the first attempt: a refused client asks again


def asks(count: int, tokens: int, seed: int, drafters: Sequence[str]) -> list[Question]:
    """Return asks, some of which name their drafter, so that each has work."""
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
        found.append(Question(DOORS[index % len(DOORS)], drawn.choice(PROMPTS), settings))
    return found


class Streams:
    """Runs one thread for each ask, until stopped."""

    def __init__(self, server: Launched, wanted: Sequence[Question], deadline: float) -> None:
        self._clients = {
            "grpc": Client(server.front_grpc),
            "unary": Client(server.front_grpc, model="covey_unary"),
        }
        self._deadline = deadline
        self._asks = wanted
        self.known: list[tuple[int, ...]] = [()] * len(wanted)
        self.answers: list[Outcome] = []
        self.refused = 0
        self._began = 0.0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def undisturbed(self) -> None:
        """Learn every answer, all at once and undisturbed. Raises CoveyClientError."""
        problems: list[CoveyClientError] = []

        def learn(index: int) -> None:
            try:
                self.known[index], _ = self._asks[index].answered(self._clients, self._deadline)
            except CoveyClientError as error:
                problems.append(error)

        self._run(learn)
        for thread in self._threads:
            thread.join()
        if problems:
            raise problems[0]

    def start(self) -> None:
        """Ask again and again, and resume broken answers."""
        self._began = time.monotonic()
        self._run(self._again_and_again)

    def stop(self) -> list[str]:
        """Send no more requests and wait for the answers; returns the clients that hang."""
        self._ended.set()
        until = time.monotonic() + self._deadline + GRACE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        hung = [f"stream {thread.name} hangs" for thread in self._threads if thread.is_alive()]
        for client in self._clients.values():
            client.close()
        return hung

    def _run(self, act: Callable[[int], object]) -> None:
        self._threads = [
            threading.Thread(target=act, args=(index,), name=str(index), daemon=True)
            for index in range(len(self._asks))
        ]
        for thread in self._threads:
            thread.start()

    def _again_and_again(self, index: int) -> None:
        while not self._ended.is_set():
            self._answer(index)

    def _answer(self, index: int) -> None:
        """Record the outcome of an ask; a client that is refused before its first token asks again."""
        ask, error, asked = self._asks[index], "", time.monotonic()
        while True:
            began = first = time.monotonic()
            try:
                tokens, first = ask.answered(self._clients, self._deadline)
                outcome = "right" if tokens == self.known[index] else "wrong"
            except DeadlineExceeded as problem:
                outcome, error = "late", str(problem)
            except CoveyClientError as problem:
                if isinstance(problem, Overloaded):
                    self.refused += 1
                    if self._ended.wait(min(problem.retry_after or 1.0, 5.0)):
                        return
                    continue
                outcome, error = "error", f"{type(problem).__name__}: {problem}"
            break
        seconds = time.monotonic() - began
        if seconds > self._deadline + GRACE_SECONDS:
            outcome = "late"
        self.answers.append(Outcome(ask.door, outcome, seconds, error, began - self._began, first - asked))
        if outcome == "error":
            self._ended.wait(REST_SECONDS)
