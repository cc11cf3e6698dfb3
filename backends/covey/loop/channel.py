"""The engine's channel to one drafter. It owns the thread that calls the drafter, the outstanding calls, how much of
each request the drafter has been told (`ActiveRequest.seen`), and the tags to free.

A drafter answers its calls in order, and the channel takes the replies in that order. A draft call waits for
an earlier call of `tell`, within the draft's own deadline.

A call that misses its deadline keeps running, and its drafter gets no new call until it ends. Its proposals are stale
by then, but its catch-up counts for requests that still run: a catch-up longer than the deadline is not repeated.

When a drafter's process ends during a round, its call fails or misses the deadline, and its rows decode plainly:

    reply          The call has failed or is late. The drafter rests and gets no calls.                (roster)
    roster.gone    The kernel has reported the end of the process (`covey.supervision.presence`).      (drafter_facts)
    settle         The channel gives up the calls that the process took, and replaces their thread.    (give_up_lost)
    revival        The launcher reloads the drafter's model.                                           (supervision)
    roster.came    The new process has reported its facts. It serves as soon as its rest is over.      (drafter_facts)

The new process knows no request. The channel opens a request there with all its tokens: at once if its call has failed
or was given up, otherwise after the new process has answered STALE for it.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from covey.contracts.errors import CoveyError, PortError, PortTimeout, StubDead
from covey.contracts.ports import Clock, Drafter
from covey.contracts.types import (
    NO_STATES,
    DraftReply,
    DraftWork,
    Ints,
    RowStatus,
    Rule,
)
from covey.process.log_about import about
from covey.process.worker import Worker
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Plan
from covey.requests.scheduler import Batch

log = logging.getLogger("covey.channel")


@dataclass(frozen=True, slots=True, eq=False)
class DrafterCall:
    """A call to a drafter; row r of its message belongs to `requests[r]`."""

    requests: list[ActiveRequest]
    work: DraftWork
    started: float  # when it was sent
    future: Future[DraftReply]

    @property
    def lengths(self) -> Ints:
        """Return how many tokens of each row the drafter knows after this call."""
        lengths: Ints = self.work.keep + np.diff(self.work.offsets)
        return lengths


@dataclass(slots=True, eq=False)
class Channel:
    """The channel to one drafter. Changes `seen` of the requests in its calls."""

    name: str
    drafter: Drafter
    roster: Roster
    clock: Clock
    failed: Callable[[str, CoveyError], None] | None  # is called after every failure
    origin: int
    sequence: Iterator[int]  # message numbers, shared by all drafters of an engine
    new_worker: Callable[[str], Worker]  # makes the drafter's thread, or a stand-in for it
    frees: list[int] = field(default_factory=list, init=False)  # tags of ended requests; the next call frees them
    _worker: Worker = field(init=False)
    _calls: deque[DrafterCall] = field(default_factory=deque, init=False)  # replies not yet taken
    _epoch: int = field(default=0, init=False)
    _counted: float = field(default=-math.inf, init=False)  # when a failure was last counted

    def __post_init__(self) -> None:
        self._worker = self.new_worker(f"draft-{self.name}")

    @property
    def state_width(self) -> int:
        """Return the width of the target states that the drafter reads; 0 if it reads none or is away."""
        facts = self.roster.facts(self.name)
        return 0 if facts is None else facts.state_width

    def first_state(self, active: ActiveRequest) -> int:
        """Return the position of the first state of a request that the head has not been sent."""
        return max(0, active.seen.get(self.name, 0) - 1)

    def ready(self, active: ActiveRequest) -> bool:
        """Return whether every token that the head lacks of this request has the state before it."""
        return active.next_state(self.first_state(active)) >= active.num_tokens - 1

    def draft(self, batch: Batch, rows: list[int], plan: Plan, deadline: float) -> DrafterCall:
        """Ask for drafts of these rows with the planned depth and width. `reply` waits for them."""
        requests = [batch.rows[row] for row in rows]
        work = self._update(requests, plan.depth[rows], plan.width[rows])
        work = replace(work, q_rows=work.q_rows or plan.divergence, log_q=plan.log_q, patience=deadline)
        return self._send(requests, work)

    def tell(self, requests: list[ActiveRequest]) -> None:
        """Send the tokens that the drafter lacks of the requests, and ask for no drafts. Does nothing while an earlier
        call is outstanding."""
        if self._calls:
            return
        none = np.zeros(len(requests), np.int32)
        call = self._send(requests, self._update(requests, none, none + 1))
        for active, length in zip(requests, call.lengths.tolist()):
            active.seen[self.name] = length  # the next call comes after this one

    def reply(self, call: DrafterCall, seconds: float) -> DraftReply | None:
        """Wait at most `seconds` for the channel's last call. Returns None if it failed or is late."""
        try:
            call.future.exception(max(0.0, seconds))
        except FutureTimeout:
            self.roster.late(self.name)
            self._counted = self.clock.now()
            self._report(call, PortTimeout(f"no proposals within {call.work.patience:g} s"))
            return None
        reply = None
        while self._calls:  # earlier calls have ended
            reply = self._take()
        if reply is not None:
            self.roster.answered(self.name)
        return reply

    def settle(self) -> None:
        """Take the replies of ended calls that no `reply` waits for: a late draft, and calls that ask for none."""
        self.give_up_lost()
        while self._calls and self._calls[0].future.done():
            self._take()

    def give_up_lost(self) -> None:
        """Give up calls to a process that has ended, and replace the thread that waits for them: Triton never answers a
        deferred request of a dead process."""
        if not any(self._lost(call) and not call.future.done() for call in self._calls):
            return
        self.close()
        self._worker = self.new_worker(f"draft-{self.name}")
        self.roster.settled(self.name)
        while self._calls:
            self._fail(self._calls.popleft(), PortError("its process ended before it answered"))

    def drop(self, requests: Iterable[ActiveRequest]) -> None:
        """Note that the drafter leaves memory. After a reload it knows none of these requests."""
        for active in requests:
            active.seen.pop(self.name, None)
        self.frees.clear()
        self._epoch = 0

    def close(self) -> None:
        self._worker.close()

    def _update(self, requests: list[ActiveRequest], depth: Ints, width: Ints) -> DraftWork:
        """Return a message with the tokens that the drafter lacks of the requests. Takes the pending frees."""
        opens, parts = [], []
        keep = np.zeros(len(requests), np.int32)
        for row, active in enumerate(requests):
            seen = active.seen.setdefault(self.name, 0)
            if not seen:
                opens.append(active.opening())
                seen = active.num_tokens
            keep[row] = seen
            parts.append(active.tokens(seen))
        frees, self.frees = tuple(self.frees), []
        return DraftWork(
            tags=np.fromiter((active.key for active in requests), np.int32, len(requests)),
            keep=keep,
            offsets=np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32),
            tokens=np.concatenate(parts).astype(np.int32),
            depth=depth,
            width=width,
            rounds=np.fromiter((active.rounds for active in requests), np.int32, len(requests)),
            q_rows=any(active.request.sampling.rule is Rule.REJECTION for active in requests),
            opens=tuple(opens),
            frees=frees,
            sequence=next(self.sequence),
            epoch=self._epoch,
            origin=self.origin,
            **(self._untold_states(requests) if self.state_width else {}),
        )

    def _untold_states(self, requests: list[ActiveRequest]) -> dict[str, Any]:
        """Return the state fields of a message to a head: the states that it lacks of the requests."""
        parts = []
        for active in requests:
            first = self.first_state(active) - active.first_state
            parts.append(active.states[first : active.num_tokens - 1 - active.first_state])
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        return {
            "state_offsets": offsets,
            "states": np.concatenate([part for part in parts if len(part)]) if offsets[-1] else NO_STATES,
        }

    def _send(self, requests: list[ActiveRequest], work: DraftWork) -> DrafterCall:
        call = DrafterCall(requests, work, self.clock.now(), self._worker.submit(self.drafter.draft, work))
        self._calls.append(call)
        return call

    def _take(self) -> DraftReply | None:
        """Take the reply of the oldest call, which has ended. Return None if it failed."""
        call = self._calls.popleft()
        if call.work.depth.any():
            self.roster.settled(self.name)
        error = call.future.exception()
        if error is None:
            error = _excess(call.work, call.future.result())
        if error is not None:
            self._fail(call, error)
            return None
        reply = call.future.result()
        self._epoch = reply.epoch
        for active, status, seen in zip(call.requests, reply.status.tolist(), reply.seen.tolist()):
            if self.name not in active.seen:
                continue  # the request has ended; its tag waits in `frees`
            if status == RowStatus.STALE:
                del active.seen[self.name]
            else:
                active.seen[self.name] = seen  # still right after a late call: requests only grow
        if reply.again_seconds:
            self.roster.declined(self.name, reply.again_seconds)
        return reply

    def _lost(self, call: DrafterCall) -> bool:
        """Return whether the process that got this call is known to have ended."""
        return self.roster.ended_since(self.name, call.started)

    def _fail(self, call: DrafterCall, error: BaseException) -> None:
        """Mark a failed call's rows and frees for resending: the channel cannot know what the drafter did with them."""
        self.frees.extend(call.work.frees)
        for active in call.requests:
            if self.name in active.seen:
                active.seen[self.name] = 0
        self._epoch = 0
        if not isinstance(error, CoveyError):
            log.error("drafter %s raised an unexpected exception", self.name, exc_info=error)
            error = PortError(f"{type(error).__name__}: {error}")
        if isinstance(error, StubDead) and self._lost(call):
            error = PortError(str(error))  # StubDead would make the orchestrator end the new process
        if call.started > self._counted:  # else one death would count once for each of its calls
            self.roster.failed(self.name)
            self._counted = self.clock.now()
        self._report(call, error)

    def _report(self, call: DrafterCall, error: CoveyError) -> None:
        with about(lambda: [active.request.name for active in call.requests]):
            log.warning("drafter %s: %s; its rows decode plainly", self.name, error)
        if self.failed is not None:
            self.failed(self.name, error)


def _excess(work: DraftWork, reply: DraftReply) -> PortError | None:
    """Return an error if some row got more drafts than were asked for: a pass has room for no more. The drafter may be
    another server's."""
    more = reply.trees.sizes > work.depth * work.width
    if not more.any():
        return None
    row = int(np.argmax(more))
    asked = int(work.depth[row] * work.width[row])
    return PortError(f"it proposed {int(reply.trees.sizes[row])} drafts for a row, {asked} were asked for")
