"""A drafter that serves several senders, with one queue and a thread that never idles while a call waits.

    submit      Take a call.
    take        Answer late calls; choose the next call and the rows that join it                    (queue)
    draft       Run one pass for all of them.
    answer      Send each its part; note who waited and was served, and how long                     (accounts)

Late calls are answered "decode plainly"; the drafter later gets only their frees. After a joint failure, calls run one
by one for a while, so that a call that breaks the drafter fails alone. A single sender can be served in the thread that
brings its call (`at_once`). Knows no Triton.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from covey.contracts.errors import CoveyError, PortError
from covey.contracts.ports import Drafter, SharedDrafter
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork
from covey.drafters.calls import HERE, Answered, Call, plainly
from covey.drafters.queue import DraftQueue, QueueLimits
from covey.drafters.speed import Speed
from covey.wire.ledger import MOST_TAGS

GONE = 5.0  # seconds without a call after which a sender no longer counts as served

Totals = defaultdict[str, float]  # calls by outcome, and seconds
log = logging.getLogger("covey.drafters")
APART = 10.0  # seconds without joint passes after one has failed
MOST_WAITING = 16  # most waiting calls of one sender; more come only when its answers are lost


class Accounts:
    """Owns the time of each sender's last call, and totals by server. Called by one thread at a time."""

    def __init__(self) -> None:
        self._last_call: dict[int, float] = {}  # by sender
        self._totals: dict[str, Totals] = defaultdict(lambda: defaultdict(float))

    def called(self, call: Call) -> None:
        """Note that a call has come."""
        self._last_call[call.who] = call.arrived

    def served(self, call: Call, reply: DraftReply, seconds: float) -> None:
        """Note that the sender was drafted for, and its share of the drafter's time."""
        totals = self._totals[call.caller]
        totals["drafted"] += 1
        totals["service"] += seconds
        totals["wait"] += reply.wait_seconds
        totals["levels"] += call.depth

    def turned_away(self, call: Call, outcome: str, wait: float) -> None:
        """Note that nothing was drafted: `late` or `failed`."""
        totals = self._totals[call.caller]
        totals[outcome] += 1
        totals["wait"] += wait

    def gone(self, now: float, waiting: Collection[int]) -> list[int]:
        """Remove and return the silent senders, except those with a waiting call."""
        silent = [who for who, at in self._last_call.items() if now - at > GONE and who not in waiting]
        for who in silent:
            del self._last_call[who]
        return silent

    def __len__(self) -> int:
        return len(self._last_call)

    def __iter__(self) -> Iterator[int]:
        return iter(self._last_call)

    def figures(self) -> dict[str, Totals]:
        """Return totals by server. Does not mutate."""
        return {name: totals.copy() for name, totals in self._totals.items()}


class DraftService:
    """Owns the drafter, its queue and the accounts of its senders."""

    def __init__(
        self,
        drafter: Drafter,
        limits: QueueLimits | None = None,
        weights: Mapping[str, float] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drafter = drafter
        self._together = drafter.draft_together if isinstance(drafter, SharedDrafter) else None
        self._queue = DraftQueue(limits or QueueLimits(), weights)
        self._speed = Speed()
        self._accounts = Accounts()
        self._now = now
        self._changed = threading.Condition()
        self._turn = threading.Lock()  # held while a call changes the drafter
        self._serving: list[Call] = []
        self._free = -math.inf  # expected end of the calls being served
        self._frees: dict[int, tuple[int, tuple[int, ...]]] = {}  # by sender, with its origin: untold frees
        self._apart_until = -APART
        self._idle_since, self._idle, self._joined = now(), 0.0, 0
        self._epoch = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    # ---- any thread -------------------------------------------------------------------------------------------------

    def info(self) -> DrafterInfo:
        """Return the drafter's facts, and how long one more sender would wait."""
        with self._changed:
            ahead = self._serving + self._queue.calls()
        wait = sum(self._speed.seconds(call.beams, call.depth) for call in ahead)
        return replace(self._drafter.info(), wait_seconds=wait, step_seconds=self._speed.step(1))

    def at_once(self, work: DraftWork, caller: str) -> DraftReply | None:
        """Serve the call in this thread if its sender is alone, otherwise return None. Raises CoveyError if the drafter
        fails."""
        call = Call(work, caller, self._now())
        with self._changed:
            self._part(call.arrived)
            if self._stopped or self._serving or len(self._queue) or any(who != call.who for who in self._accounts):
                return None
            self._accounts.called(call)
            self._begun([call])
        (answer,) = self._served([call])
        if isinstance(answer, CoveyError):
            raise answer
        return answer

    def submit(self, work: DraftWork, caller: str, answered: Answered) -> None:
        """Queue a call. `answered` gets its answer exactly once, in any thread."""
        call = Call(work, caller, self._now(), answered)
        refusal: DraftReply | CoveyError
        with self._changed:
            self._part(call.arrived)
            if self._stopped:
                refusal = PortError("the drafter is stopping")
            elif self._queue.count(call.who) >= MOST_WAITING:
                refusal = PortError(f"{MOST_WAITING} calls of this sender are already waiting")
            elif max(call.arrived, self._free) + self._speed.seconds(call.beams, 1) > call.due:
                self._accounts.called(call)
                refusal = self._late(call, call.arrived)
            else:
                self._accounts.called(call)
                self._queue.put(call)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="draft-service", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return
        call.answer(refusal)

    def draft(self, work: DraftWork, caller: str = HERE) -> DraftReply:
        """Draft as `submit` does, and wait for the answer. Raises CoveyError if the drafter fails."""
        answers: list[DraftReply | CoveyError] = []
        done = threading.Event()

        def answered(answer: DraftReply | CoveyError) -> None:
            answers.append(answer)
            done.set()

        self.submit(work, caller, answered)
        done.wait()
        (answer,) = answers
        if isinstance(answer, CoveyError):
            raise answer
        return answer

    def stop(self) -> None:
        """Stop serving. Waiting calls fail."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def counters(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value so far. Does not mutate."""
        with self._changed:
            figures = self._accounts.figures()
            idle = self._idle + (0.0 if self._serving else self._now() - self._idle_since)
        for caller, totals in figures.items():
            labels = {"origin": caller or "own"}
            for outcome in ("drafted", "late", "failed"):
                yield "covey_draft_calls_total", labels | {"outcome": outcome}, totals[outcome]
            yield "covey_draft_wait_seconds_total", labels, totals["wait"]
            yield "covey_draft_service_seconds_total", labels, totals["service"]
            yield "covey_draft_levels_total", labels, totals["levels"]
        yield "covey_draft_idle_seconds_total", {}, idle
        yield "covey_draft_joined_total", {}, self._joined

    def gauges(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value. Does not mutate."""
        yield "covey_draft_senders", {}, len(self._accounts)
        yield "covey_draft_step_seconds", {}, self._speed.step(1)

    # ---- the service's own thread, or that of `at_once` -------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (self._serving or not len(self._queue)):
                    self._changed.wait()
                waiting = self._queue.calls()
                if self._stopped:
                    break
            try:
                self._serve()
            except Exception:  # a defect of the queue: later calls must not hang
                log.exception("the queue of a shared drafter failed, its waiting calls are lost")
                self._fail(waiting, PortError("the drafter's queue failed; see its server's log"))
        self._fail(waiting, PortError("the drafter is stopping"))

    def _serve(self) -> None:
        """Answer the late calls and the ones whose turn it is."""
        with self._changed:
            now = self._now()
            late = self._queue.late(now, self._speed)
            answers = [self._late(call, now) for call in late]
            shared = self._together is not None and now >= self._apart_until
            calls = self._queue.take(now, self._speed, shared=shared)
            if calls:
                self._begun(calls)
        for call, reply in zip(late, answers):
            call.answer(reply)
        for call, answer in zip(calls, self._served(calls) if calls else ()):
            call.answer(answer)

    def _fail(self, calls: list[Call], error: CoveyError) -> None:
        with self._changed:
            self._queue.drop(calls)
        for call in calls:
            call.answer(error)

    def _begun(self, calls: list[Call]) -> None:
        self._serving = calls
        now = self._now()
        levels, beams = max(call.depth for call in calls), sum(call.beams for call in calls)
        self._free = now + levels * self._speed.step(beams)
        self._idle += now - self._idle_since
        self._joined += len(calls) - 1

    def _served(self, calls: list[Call]) -> list[DraftReply | CoveyError]:
        """Draft for the calls, account for the time, and return their answers."""
        started = self._now()
        with self._changed:
            missed = [self._missed(call) for call in calls]
            for call in calls:
                self._frees.pop(call.who, None)
        works = [replace(call.work, frees=frees + call.work.frees) for call, frees in zip(calls, missed)]
        answers: list[DraftReply | CoveyError]
        try:
            with self._turn:
                if len(works) > 1:
                    assert self._together is not None
                    replies = self._together(works)
                else:
                    replies = [self._drafter.draft(works[0])]
            answers = [
                replace(reply, wait_seconds=reply.wait_seconds + started - call.arrived)
                for call, reply in zip(calls, replies)
            ]
        except Exception as error:
            if not isinstance(error, CoveyError):
                log.exception("a shared drafter raised an unexpected exception")
                error = PortError(f"{type(error).__name__}: {error}")
            replies, answers = [], [error] * len(calls)
        ended = self._now()
        with self._changed:
            self._serving, self._free, self._idle_since = [], -math.inf, ended
            self._queue.served(calls, ended - started)
            if replies:
                self._epoch = replies[0].epoch
                depth, beams = max(call.depth for call in calls), sum(call.beams for call in calls)
                self._speed.update(beams, depth, replies[0].draft_seconds)
            elif len(calls) > 1:
                self._apart_until = ended + APART
            for call, answer, frees in zip(calls, answers, missed):
                if isinstance(answer, CoveyError):
                    self._frees[call.who] = call.work.origin, frees + self._missed(call)
                    self._accounts.turned_away(call, "failed", started - call.arrived)
                else:
                    self._accounts.served(call, answer, (ended - started) / len(calls))
            self._changed.notify_all()
        return answers

    def _part(self, now: float) -> None:
        """Forget silent senders."""
        for who in self._accounts.gone(now, {call.who for call in self._serving + self._queue.calls()}):
            self._queue.forget(who)

    def _missed(self, call: Call) -> tuple[int, ...]:
        """Return the sender's frees that the drafter was not told. Does not mutate."""
        origin, frees = self._frees.get(call.who, (0, ()))
        return frees if origin == call.work.origin else ()

    def _late(self, call: Call, now: float) -> DraftReply:
        self._accounts.turned_away(call, "late", now - call.arrived)
        if call.arrived + self._speed.seconds(call.beams, 1) > call.due:
            self._speed.doubt(call.beams)  # else a wrong estimate would refuse this call for ever
        return self._plainly(call)

    def _plainly(self, call: Call) -> DraftReply:
        work = call.work
        if work.frees:
            self._frees[call.who] = work.origin, (self._missed(call) + work.frees)[-MOST_TAGS:]
        return plainly(work, self._epoch, self._now() - call.arrived)
