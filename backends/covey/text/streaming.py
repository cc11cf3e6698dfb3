"""Turns the engine's progress into responses to clients: text, counts, the end.

The engine's thread only queues progress. The streamer's thread turns it into text and sends it, first tokens before all
others. If many answers are streamed, each is sent less often, in larger pieces, because responses take processor time
from the models. The thread also finds stop words and clients that have gone, and tells the engine. Knows no Triton: an
`Outlet` receives one request's answer.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from covey.contracts.errors import CoveyError, Overloaded, PortError, RequestError
from covey.contracts.objectives import judge
from covey.contracts.ports import Clock
from covey.contracts.types import (
    NO_FLOATS,
    NO_INTS,
    NO_SCORES,
    NO_TOP,
    Attainment,
    Finish,
    Floats,
    Ints,
    Progress,
    Request,
    Scores,
    Top,
)
from covey.process.log_about import about
from covey.text.text import Detokenizer, context_of, last_output

POLL_SECONDS = 0.02  # between two checks for held text that is due
GONE_SECONDS = 0.2  # between two checks for clients that have gone, each of which asks tritonserver
REFUSED = "refused"  # the outcome of a request that never ran
log = logging.getLogger("covey.streaming")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One response to a client, before it becomes a tensor or an event. Counts are the request's so far; only the last
    chunk has `finish`."""

    text: str
    ids: Ints
    logprobs: Floats
    finish: Finish | None
    seed: int
    num_input: int
    num_output: int
    reused: int
    drafted: int
    accepted: int
    state: DetokenizerState | None = None  # for an outlet that detokenizes elsewhere
    emulated: bool = False  # no real model made the text
    acceptance: tuple[int, ...] = ()  # [j]: drafts of which j tokens were accepted
    ttft: float | None = None  # seconds; None before such a token
    tpot: float | None = None
    attainment: str = ""  # on the last chunk, an `Attainment`; "" without an objective
    drafters: tuple[tuple[str, int, int], ...] = ()  # name, tokens drafted and accepted
    top: Top = NO_TOP  # aligned with ids, if asked for
    prompt_ids: Ints = field(default_factory=lambda: NO_INTS)  # on the first chunk, if its scores are wanted
    prompt_scores: Scores = NO_SCORES  # from the second token on


@dataclass(frozen=True, slots=True)
class DetokenizerState:
    """The state with which `covey.text.text.visible_text` turns a chunk's ids into text without the earlier chunks."""

    context: list[int]
    before: list[int]
    stop_words: tuple[str, ...]
    prefix: str
    final: bool


class Outlet(Protocol):
    """The receiver of one request's answer. The streamer's thread calls it; a request that is refused before it runs is
    answered by the thread that refuses it. It may raise CoveyError if the client has gone. Any other error ends its own
    answer."""

    streams: bool  # whether it takes more than one chunk
    needs_state: bool  # whether chunks must carry a `DetokenizerState`

    def send(self, chunk: Chunk) -> None:
        """Deliver a chunk; one with `finish` is the last."""
        ...

    def fail(self, error: Exception) -> None:
        """Deliver an error as the last response."""
        ...

    def gone(self) -> bool:
        """Return whether the client has given up."""
        ...


@dataclass(frozen=True, slots=True)
class Served:
    """The figures of one finished request for metrics; times in seconds, None without such a token."""

    finish: Finish
    progress: Progress  # the last
    num_input: int
    num_output: int
    first_token: float | None
    per_token: float | None
    total: float
    gaps: Sequence[float] = ()  # between its rounds with tokens
    refused: bool = False  # it has never run
    slo: str = ""  # its objective's label in metrics; "": it had none
    attainment: Attainment | None = None
    name: str = ""  # in logs
    trace: str = ""  # the `traceparent` that it came with

    @property
    def outcome(self) -> str:
        """Return how it ended, as metrics and traces name it."""
        return REFUSED if self.refused else self.finish.value


class Canceller(Protocol):
    """The part of an engine that this module needs."""

    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None: ...


@dataclass(slots=True)
class _Answer:
    request: Request
    outlet: Outlet
    detokenizer: Detokenizer | None
    context: list[int]
    stop_words: tuple[str, ...]
    stream: bool
    prefix: str
    prompt: Ints  # if its scores are wanted; dropped once sent, like these
    prompt_scores: Scores = NO_SCORES
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    output: int = 0
    sent: float = -math.inf  # when its last response was sent
    progress: Progress | None = None  # the last, if something is held
    held: list[tuple[str, Ints, Floats, Top]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)  # earlier output; new tokens are added if the outlet needs state

    @property
    def ttft(self) -> float | None:
        """Return the seconds from the request's arrival to its first token; None before it."""
        return None if self.first is None else self.first - self.request.arrival

    @property
    def tpot(self) -> float | None:
        """Return the seconds per token from the first one on; None before the second."""
        return None if self.first is None or self.output < 2 else (self.last - self.first) / (self.output - 1)

    def taken(self) -> tuple[str, Ints, Floats, Top]:
        """Return everything that is held, and clear it."""
        texts, ids, scores, top = zip(*self.held)
        self.progress, self.held = None, []
        return "".join(texts), np.concatenate(ids), np.concatenate(scores), Top.joined(top)

    def attainment(self, finish: Finish, *, refused: bool) -> Attainment | None:
        """Return whether the request met its objective; None without an objective."""
        if not self.request.objective.label:
            return None
        if finish in (Finish.CANCELLED, Finish.ERROR):
            return Attainment.REFUSED if refused else Attainment.UNFINISHED
        return judge(self.request.objective, self.ttft, self.tpot)


class Streamer:
    """Owns the open answers. Implements `covey.contracts.ports.Sink`.

    begin     any thread        opens an answer, before the engine gets the request
    publish   the engine's      queues the progress of one round
    _take     the streamer's    turns one request's progress into text, finds stop words, and holds the text if the
                                last response was sent only just now
    _send     the streamer's    sends the held text to the outlet
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        clock: Clock,
        *,
        served: Callable[[Served], None] | None = None,
        emulated: bool = False,
        apart: float = 0.0,
    ) -> None:
        """`apart` times the number of open answers is the least time between two responses to a request, in seconds."""
        self._emulated, self._apart = emulated, apart
        self._tokenizer = tokenizer
        self._clock = clock
        self._served = served
        self._answers: dict[int, _Answer] = {}
        self._queue: deque[Sequence[Progress]] = deque()
        self._wake = threading.Condition()
        self._stopped = False
        self._engine: Canceller | None = None
        self._thread = threading.Thread(target=self._run, name="streamer", daemon=True)

    def start(self, engine: Canceller) -> None:
        self._engine = engine
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    def begin(
        self, request: Request, outlet: Outlet, *, stream: bool, stop_words: Sequence[str] = (), prefix: str = ""
    ) -> None:
        """Open the answer to a request; call this before the engine gets it. Times count from its arrival. Tokens of
        its prompt after the first `num_prompt` are earlier output: text and stop words continue from them.
        Thread-safe."""
        context, before, detokenizer, prompt = [], list[int](), None, request.prompt
        if self._tokenizer is not None:
            before = last_output(prompt[request.num_prompt :].tolist(), stop_words)
            context = context_of(self._tokenizer, prompt[: len(prompt) - len(before)][-32:].tolist())
            detokenizer = Detokenizer(self._tokenizer, context, stop_words)
            detokenizer.push(before)
        scored = prompt[: request.num_prompt] if request.sampling.prompt_logprobs else NO_INTS
        answer = _Answer(
            request, outlet, detokenizer, context, tuple(stop_words), stream, prefix, scored, before=before
        )
        with self._wake:
            self._answers[request.key] = answer
            self._wake.notify()  # the streamer must now watch its client

    def abandon(self, key: int) -> None:
        """Forget a request that the engine did not accept. Thread-safe."""
        with self._wake:
            self._answers.pop(key, None)

    def fail_all(self, error: Exception) -> None:
        """End every open answer with an error, because the engine is gone. Thread-safe."""
        with self._wake:
            self.publish([Progress(key, NO_INTS, NO_FLOATS, Finish.ERROR, error) for key in self._answers])

    @property
    def open(self) -> int:
        """Return how many answers have not ended; `stop` waits for the others' last responses. Thread-safe."""
        with self._wake:
            return len(self._answers)

    def publish(self, batch: Sequence[Progress]) -> None:
        with self._wake:
            self._queue.append(batch)
            self._wake.notify()

    def _run(self) -> None:
        polled = asked = self._clock.now()
        first, later = dict[int, list[Progress]](), dict[int, list[Progress]]()  # by key, of answers without a response
        while True:
            with self._wake:
                if not (self._queue or first or later or self._stopped):
                    self._wake.wait(POLL_SECONDS if self._answers else None)
                batches, self._queue = self._queue, deque()
                if self._stopped and not (batches or first or later):
                    return
            for item in itertools.chain.from_iterable(batches):
                answer = self._answers.get(item.key)
                new = answer is not None and answer.first is None
                (first if new else later).setdefault(item.key, []).append(item)
            waiting = first or later
            if waiting:
                self._handle(waiting.pop(next(iter(waiting))))
            now = self._clock.now()
            if now - polled >= POLL_SECONDS:
                gone = now - asked >= GONE_SECONDS
                self._poll(gone=gone)
                asked = now if gone else asked
                polled = self._clock.now()

    def _poll(self, *, gone: bool) -> None:
        """Send held text that is due. If `gone`, cancel requests whose clients have gone."""
        with self._wake:
            answers = list(self._answers.values())
        for answer in answers:
            try:
                if answer.progress is not None and self._due(answer):
                    self._send(answer, None, answer.progress)
                if gone and answer.outlet.gone():
                    self._cancel(answer)
            except Exception as error:
                self._break(answer, Progress(answer.request.key, NO_INTS, NO_FLOATS), error)

    def _cancel(self, answer: _Answer, finish: Finish = Finish.CANCELLED) -> None:
        assert self._engine is not None
        self._engine.cancel(answer.request.key, finish)

    def _break(self, answer: _Answer, last: Progress, error: Exception) -> None:
        """End only this answer, after an unexpected error."""
        with about(lambda: (answer.request.name,)):
            log.error("Ended an answer after an unexpected error: %s", _named(error), exc_info=error)
            self._cancel(answer)
            try:
                self._end(answer, Finish.ERROR, last, PortError(f"the answer could not be sent: {_named(error)}"))
            except Exception as again:
                log.error("Could not send the error to the client: %s", _named(again))

    def _end(self, answer: _Answer, finish: Finish, last: Progress, failed: Exception | None) -> None:
        """Send the last response, which is an error if the answer has failed."""
        with self._wake:
            self._answers.pop(answer.request.key, None)
        if failed is None:
            self._send(answer, finish, last)
        else:
            with contextlib.suppress(CoveyError):  # the client has gone
                answer.outlet.fail(failed)
        if self._served is not None:
            self._served(_served(answer, finish, last, self._clock.now()))

    def _handle(self, items: list[Progress]) -> None:
        answer = self._answers.get(items[0].key)
        if answer is None:
            return  # a stop word has already ended it
        try:
            self._take(answer, items)
        except Exception as error:
            self._break(answer, items[-1], error)

    def _take(self, answer: _Answer, items: list[Progress]) -> None:
        last = items[-1]
        ids = np.concatenate([item.tokens for item in items])
        scores = np.concatenate([item.logprobs for item in items])
        top = Top.joined([item.top for item in items])
        answer.prompt_scores = next((item.scores for item in items if len(item.scores.logprobs)), answer.prompt_scores)
        finish = last.finish
        text = ""
        if answer.detokenizer is not None:
            text, used = answer.detokenizer.push(ids.tolist())
            stopped = answer.detokenizer.stopped
            if stopped:
                ids, scores, top = ids[:used], scores[:used], top.at(slice(used))
                if finish is None:
                    self._cancel(answer, Finish.STOP)
                finish = Finish.STOP if last.error is None else finish
            elif finish is not None:
                text += answer.detokenizer.finish()
                if answer.detokenizer.stopped:
                    finish = Finish.STOP
        now = self._clock.now()
        if len(ids):
            answer.output += len(ids)
            if answer.first is not None:
                answer.gaps.append(now - answer.last)
            answer.first = now if answer.first is None else answer.first
            answer.last = now
        answer.progress = last
        answer.held.append((text, ids, scores if answer.request.sampling.logprobs else NO_FLOATS, top))
        if finish is Finish.CANCELLED:
            self._end(answer, finish, last, Cancelled("cancelled by the client"))
        elif finish is not None:
            self._end(answer, finish, last, last.error if finish is Finish.ERROR else None)
        elif self._due(answer):
            self._send(answer, None, last)

    def _due(self, answer: _Answer) -> bool:
        """Return whether an unfinished answer must send its held text now."""
        return answer.stream and self._clock.now() - answer.sent >= self._apart * len(self._answers)

    def _send(self, answer: _Answer, finish: Finish | None, last: Progress) -> None:
        text, ids, scores, top = answer.taken()
        state = self._state(answer, ids, finish) if answer.outlet.needs_state else None
        if answer.prefix:
            text, answer.prefix = answer.prefix + text, ""
        prompt, prompt_scores = answer.prompt, answer.prompt_scores
        answer.prompt, answer.prompt_scores = NO_INTS, NO_SCORES
        answer.sent = self._clock.now()
        try:
            answer.outlet.send(
                Chunk(
                    text=text,
                    ids=ids,
                    logprobs=scores,
                    finish=finish,
                    seed=answer.request.sampling.seed,
                    num_input=len(answer.request.prompt),
                    num_output=answer.output,
                    reused=last.reused,
                    drafted=last.drafted,
                    accepted=last.accepted,
                    state=state,
                    emulated=self._emulated,
                    acceptance=last.acceptance,
                    ttft=answer.ttft,
                    tpot=answer.tpot,
                    attainment="" if finish is None else answer.attainment(finish, refused=False) or "",
                    drafters=last.drafters,
                    top=top,
                    prompt_ids=prompt,
                    prompt_scores=prompt_scores,
                )
            )
        except CoveyError:
            self._cancel(answer)  # the client has gone

    @staticmethod
    def _state(answer: _Answer, ids: Ints, finish: Finish | None) -> DetokenizerState:
        before = list(answer.before)
        answer.before.extend(ids.tolist())
        return DetokenizerState(answer.context, before, answer.stop_words, answer.prefix, finish is not None)


class Cancelled(RequestError):
    """The client cancelled its request."""

    code = "CANCELLED"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _served(answer: _Answer, finish: Finish, last: Progress, now: float) -> Served:
    refused = answer.first is None and isinstance(last.error, Overloaded)
    return Served(
        finish=finish,
        progress=last,
        num_input=len(answer.request.prompt),
        num_output=answer.output,
        first_token=answer.ttft,
        per_token=answer.tpot,
        total=now - answer.request.arrival,
        gaps=answer.gaps,
        refused=refused,
        slo=answer.request.objective.label,
        attainment=answer.attainment(finish, refused=refused),
        name=answer.request.name,
        trace=answer.request.trace,
    )
