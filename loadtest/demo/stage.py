"""Asks a running server and looks at it; at the end every answer is compared with plain decoding."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict
from covey.launcher import Server
from covey_client import Client, CoveyClientError, status
from covey_client.rates import MetricsSnapshot, Span
from covey_client.reports import Reports, RoundReport
from covey_client.response import Completion
from loadtest import questions
from loadtest.bench.session import Session
from loadtest.bench.work import Ask, asked
from loadtest.charts import Points
from loadtest.demo import answer
from loadtest.pictures import DRAFTED

LOOK_SECONDS = 0.5
DECISIONS = 200  # that a server reports at once
PATIENCE = 90.0  # seconds to wait for an expected event
TIMEOUT = 300.0  # of a request: a busy machine is no error
TOKENS, SHOWN_TOKENS = 64, 160
PLAIN = 16  # callers of the comparison


class NotSeen(CoveyError):
    """The server did not show the behaviour of a step by itself."""


@dataclass(frozen=True)
class Look:
    """Holds what a server reported since the last look: counters, planner decisions and rounds."""

    span: Span
    decisions: Sequence[JsonDict]
    rounds: Sequence[RoundReport]

    @property
    def at(self) -> float:
        return self.span.after.at

    @property
    def drafted(self) -> dict[str, float]:
        """Return tokens by drafter."""
        return self.span.grew_by(DRAFTED, "drafter")


@dataclass(frozen=True)
class Answered:
    at: float
    ask: Ask
    answer: Completion


class Stage:
    """Asks and watches one server during one step. Times are seconds since the step began."""

    def __init__(
        self,
        name: str,
        server: Server,
        session: Session,
        known: questions.Prompts,
        tokenizer: Tokenizer | None,
        pace: float,
    ) -> None:
        """`known` has the prompts by domain, and `pace` is the share of the seconds that a step takes."""
        self.out, self._tokenizer = session.wanted.out.parent, tokenizer
        self.server, self.marks = server, list[tuple[float, str]]()
        self.looks: list[Look] = []
        self.answers: list[Answered] = []
        self._name, self._session, self._pace = name, session, pace
        self._reports, self._client = Reports(server.http_url), Client(server.grpc_url, timeout=TIMEOUT)
        self._prompts = known
        self._began, self._numbers = time.monotonic(), itertools.count(1)
        self._failed: list[CoveyClientError] = []
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Stage:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._client.close()  # answers under way end here
        self._watching.join()

    def ask(self, domain: str, **settings: Any) -> Callable[[int], Ask]:
        """Return a function that makes the request of a number: none has another one's seed."""
        known = self._prompts[domain]
        return lambda number: asked(known[number % len(known)], TOKENS, 1.0, number, domain, settings=settings)

    @contextmanager
    def asking(self, callers: int, ask: Callable[[int], Ask]) -> Iterator[None]:
        """Run this many callers meanwhile; each asks again when it has its answer."""
        stopped = threading.Event()
        threads = self._start(callers, map(ask, self._numbers), stopped, self.answers)
        try:
            yield
        finally:
            stopped.set()
        self._join(threads)

    def written(self, title: str, domain: str, **settings: Any) -> answer.Side:
        """Ask for a long greedy answer, and watch it being written."""
        prompt, number = self._prompts[domain][0], next(self._numbers)
        assert self._tokenizer is not None, "a model that answers questions has one"
        ask = asked(prompt, SHOWN_TOKENS, 0.0, number, domain, settings=settings)
        with self._session.status(f"{self._name}: {domain}, {title}"):
            given = {"max_tokens": SHOWN_TOKENS, "temperature": 0.0, "tenant": f"demo {number}", **settings}
            side, whole = answer.written(self._client, self._tokenizer, title, ask.ids or ask.text, **given)
        self.answers.append(Answered(self._now(), ask, whole))
        return side

    def wait(self, doing: str, seconds: float, until: Callable[[Look], bool] | None = None) -> None:
        """Mark the time, and wait: for these seconds, or until a look finds the expected event, which must come."""
        self.marks.append((self._now(), doing))
        with self._session.status(f"{self._name}: {doing}"):
            seen, began = len(self.looks), time.monotonic()
            deadline = began + (PATIENCE if until else self._pace * seconds)
            while not self._failed and (left := deadline - time.monotonic()) > 0:
                if until and any(map(until, self.looks[seen:])):
                    return
                time.sleep(min(0.1, left))
        if until and not self._failed:
            raise NotSeen(f"no effect of {doing!r} was seen within {PATIENCE:.0f} s")

    def compared(self) -> int:
        """Ask every question again without drafts, as another tenant; returns the number of answers that differ."""
        settings = {"speculation": "off", "tenant": "plain"}
        plain: list[Answered] = []
        asks = [replace(each.ask, settings={**each.ask.settings, **settings}) for each in self.answers]
        with self._session.status(f"{self._name}: {len(asks)} answers against those of plain decoding"):
            self._join(self._start(PLAIN, iter(asks), threading.Event(), plain))
        texts = {each.ask.seed: each.answer.tokens for each in plain}
        return sum(texts[each.ask.seed] != each.answer.tokens for each in self.answers)

    def objective(self, slo_class: str) -> dict[str, float]:
        """Return the class's `ttft` and `tpot`, in milliseconds, as the server says."""
        reading = self._reading()
        found = {of: reading.value("covey_slo_target_seconds", slo_class=slo_class, of=of) for of in ("ttft", "tpot")}
        return {of: 1000 * (seconds or 0.0) for of, seconds in found.items()}

    def points(self, value: Callable[[Look], float | None]) -> Points:
        found = [(look.at, value(look)) for look in self.looks]
        return [(at, each) for at, each in found if each is not None]

    def _start(
        self, callers: int, asks: Iterable[Ask], stopped: threading.Event, into: list[Answered]
    ) -> list[threading.Thread]:
        def call() -> None:
            for ask in asks:
                if stopped.is_set() or self._failed:
                    return
                try:
                    into.append(self._answered(ask))
                except CoveyClientError as error:
                    self._failed.append(error)

        threads = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
        for thread in threads:
            thread.start()
        return threads

    def _answered(self, ask: Ask) -> Answered:
        given: Any = {"max_tokens": ask.max_tokens, "temperature": ask.temperature, "seed": ask.seed, **ask.settings}
        answer = self._client.generate(ask.ids or ask.text, **given)
        return Answered(self._now(), ask, answer)

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the threads; raise the error of a request that failed."""
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _look(self) -> None:
        decided, rounds, last = -1, self._reports.last_round(), self._reading()
        while not self._ended.wait(LOOK_SECONDS):
            with suppress(CoveyClientError):  # a gap in the picture
                decisions = self._reports.decisions(DECISIONS)["decisions"]
                now, found = self._reading(), self._reports.rounds(rounds)
                fresh = [each for each in decisions if each["round"] > decided] if decided >= 0 else []
                self.looks.append(Look(Span(last, now), fresh, found))
                decided = max((each["round"] for each in decisions), default=0)
                rounds, last = max((each.round for each in found), default=rounds), now

    def _reading(self) -> MetricsSnapshot:
        samples = status.read(self.server.http_url, self.server.metrics_url.split("/")[2]).samples
        return MetricsSnapshot(self._now(), samples)

    def _now(self) -> float:
        return time.monotonic() - self._began
