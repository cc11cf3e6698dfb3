"""What drafters are asked: to draft, one call per drafter in use and round, each in that drafter's own thread and
within a deadline; and to read beside that, in calls that may outlive the round.

A drafter that is missing, late, stale or broken proposes nothing this round: its rows decode plainly. A late call is
left to end by itself; until it has, its drafter is not asked again, and what it read of the requests that are still
there then counts: a catch-up that takes longer than the deadline is not begun anew. Who can be asked, the roster says.

A call that reads is begun when the target begins its pass, and nobody waits for it. A drafter answers its calls one
after the other: asked to draft before it has read, it reads first, within the same deadline.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

import numpy as np

from covey.active import ActiveRequest, Heard
from covey.errors import CoveyError, PortError, PortTimeout, StubDead
from covey.ports import Clock, Drafter
from covey.roster import Roster
from covey.rounds import Drafted, Plan, Reader
from covey.scheduler import Batch
from covey.types import NO_FLOATS, DraftReply, DraftWork, Floats, Ints, Judged, Reading, RowStatus, Rule, Trees
from covey.worker import Thread, Worker

log = logging.getLogger("covey.drafting")

LEAST_NEEDED = 1e-6  # seconds; 0 would say that nobody needs anything
SENDING = 0.0005  # seconds in which the calls are on their way: only one thread at a time can run Python


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One call to a drafter: for which rows of its round's batch, whose they are, and what it was told."""

    name: str
    rows: list[int]
    requests: list[ActiveRequest]
    work: DraftWork
    future: Future[DraftReply]
    begun: float  # when

    @property
    def known(self) -> Ints:
        """Tokens of each row, all of which it was told."""
        sizes: Ints = self.work.keep + np.diff(self.work.offsets)
        return sizes


class Drafting:
    """Owns what each drafter has been told (`ActiveRequest.seen`) and the threads that ask them."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        roster: Roster,
        clock: Clock,
        deadline: float,
        failed: Callable[[str, CoveyError], None] | None = None,
        *,
        origin: int = 0,
        plain: Callable[[], float | None] = lambda: None,
        worker: Callable[[str], Worker] = Thread,
    ) -> None:
        """`worker` makes the thread of a drafter, or what stands in for it. `plain` says how many seconds a token takes
        without drafts, when that is known."""
        self._report = failed
        self._plain = plain
        self._origin = origin
        self._drafters = dict(drafters)
        self._roster = roster
        self._clock = clock
        self._deadline = deadline
        self._worker = worker
        self._workers = {name: self._new_worker(name) for name in drafters}
        self._late: dict[str, _Call] = {}
        self._reads: dict[str, _Call] = {}
        self._read_seconds: dict[str, float] = {}  # what calls took that read and have ended since it was last said
        self._frees: dict[str, list[int]] = {name: [] for name in drafters}
        self._epochs = dict.fromkeys(drafters, 0)
        self._sequence = 0

    def draft(self, batch: Batch, plan: Plan, meanwhile: Callable[[], None]) -> Drafted:
        """Proposals for every row of the batch, empty where none were asked for or to be had. `meanwhile` is called
        while the drafters work, if any do."""
        answered = np.zeros(len(batch.rows), np.bool_)
        asked = self._rows_by_drafter(plan)
        read, self._read_seconds = self._read_seconds, {}
        if not asked:
            return Drafted(Trees.empty(len(batch.rows)), answered, read=read)
        started = self._clock.now()
        calls = []
        for name, rows in asked.items():
            shape = plan.depth[rows], plan.width[rows]
            calls.append(self._call(name, rows, batch, *shape, q_rows=plan.divergence, log_q=plan.log_q))
        wait((call.future for call in calls), SENDING)
        meanwhile()
        proposals: list[tuple[list[int], Trees]] = []
        seconds: dict[str, float] = {}
        catch_up: dict[str, float] = {}
        for call in calls:
            left = self._deadline - (self._clock.now() - started)
            try:
                error = call.future.exception(max(0.0, left))
            except FutureTimeout:
                self._late[call.name] = call
                self._roster.late(call.name)
                self._tell(call.name, PortTimeout(f"no proposals within {self._deadline:g} s"))
                continue
            self._settle_read(call.name)  # it came first
            if error is not None:
                self._failed(call, error)
                continue
            reply = call.future.result()
            self._note(call, reply)
            self._roster.answered(call.name)
            if reply.again_seconds:
                self._roster.declined(call.name, reply.again_seconds)
            seconds[call.name], catch_up[call.name] = reply.draft_seconds, reply.catch_up_seconds
            answered[call.rows] = (reply.status != RowStatus.STALE) & (reply.seen == call.known)
            proposals.append((call.rows, reply.trees))
        return Drafted(_joined(len(batch.rows), proposals), answered, seconds, catch_up, read, plan.drafter)

    def read(self, batch: Batch, readers: Sequence[Reader]) -> None:
        """Begin what is to be read. A drafter that cannot be asked, or has not ended the last such call, is not."""
        for reader in readers:
            name = reader.drafter
            if len(reader.rows) and self._roster.serves(name) and name not in self._reads:
                none = np.zeros(len(reader.rows), np.int32)
                reading = Reading(reader.judge, reader.budget, _chances(batch, reader))
                self._reads[name] = call = self._call(name, reader.rows.tolist(), batch, none, none + 1, reading)
                for active, known in zip(call.requests, call.known.tolist()):
                    active.seen[name] = known  # whatever it is asked next, it is asked after this

    def put_back(self, drafted: Drafted) -> None:
        """That round came to nothing, and nobody learns from it: what reading took is said with the next one."""
        for name, seconds in drafted.read.items():
            self._took(name, seconds)

    def settle(self) -> None:
        """Calls that nobody waited for and that have ended by now. Of late ones the proposals are of the past, but what
        they read is not; and what one failed of may say more than that it was late."""
        for name in {*self._reads, *self._late}:
            self._give_up_lost(name)
        for name, read in list(self._reads.items()):
            if read.future.done():
                self._settle_read(name)
        for name, late in list(self._late.items()):
            if late.future.done():
                del self._late[name]
                self._settle_read(name)  # it came first, and may have ended just now, too
                self._roster.settled(name)
                error = late.future.exception()
                if error is not None:
                    self._failed(late, error)
                else:
                    self._note(late, late.future.result())

    def forget(self, active: ActiveRequest) -> None:
        """A request is gone: its tag is freed with the next call to each drafter that may know it."""
        for name in active.seen:
            self._frees[name].append(active.key)
        active.seen.clear()

    def drop(self, name: str, requests: Iterable[ActiveRequest]) -> None:
        """A drafter that is asked nothing more; should it come back it knows none of these requests."""
        for active in requests:
            active.seen.pop(name, None)
        self._frees[name].clear()
        self._epochs[name] = 0

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def _rows_by_drafter(self, plan: Plan) -> dict[str, list[int]]:
        asked: dict[str, list[int]] = {}
        for row in np.flatnonzero(plan.depth).tolist():
            asked.setdefault(plan.drafter[row], []).append(row)
        return {name: rows for name, rows in asked.items() if self._roster.serves(name)}

    def _new_worker(self, name: str) -> Worker:
        return self._worker(f"draft-{name}")

    def _give_up_lost(self, name: str) -> None:
        """Calls to a drafter's process that has ended: where it was to answer later, Triton never does. Their thread
        is left to wait."""
        calls = [calls[name] for calls in (self._reads, self._late) if name in calls]
        if not any(self._roster.lost(name, call.begun) for call in calls if not call.future.done()):
            return
        self._workers[name].close()
        self._workers[name] = self._new_worker(name)
        self._reads.pop(name, None)
        self._late.pop(name, None)
        self._roster.settled(name)
        for call in calls:
            self._failed(call, PortError("its process ended before it answered"))

    def _settle_read(self, name: str) -> None:
        """Take what a call brought that reads and has ended, if there is one."""
        call = self._reads.pop(name, None)
        if call is None:
            return
        error = call.future.exception()
        if error is not None:
            self._took(name, self._clock.now() - call.begun)
            self._failed(call, error)
            return
        reply = call.future.result()
        self._note(call, reply)
        if reply.again_seconds:
            self._roster.declined(name, reply.again_seconds)
        self._took(name, reply.catch_up_seconds + reply.draft_seconds)
        if reply.judged is not None:
            _hear(call, reply.judged)

    def _took(self, name: str, seconds: float) -> None:
        self._read_seconds[name] = self._read_seconds.get(name, 0.0) + seconds

    def _call(
        self,
        name: str,
        rows: list[int],
        batch: Batch,
        depth: Ints,
        width: Ints,
        reading: Reading | None = None,
        *,
        q_rows: bool = False,
        log_q: bool = False,
    ) -> _Call:
        requests = [batch.rows[row] for row in rows]
        q_rows |= any(active.request.sampling.rule is Rule.REJECTION for active in requests)
        work = self._work(name, requests, depth, width, reading, q_rows, log_q)
        begun = self._clock.now()
        return _Call(name, rows, requests, work, self._workers[name].submit(self._drafters[name].draft, work), begun)

    def _work(
        self,
        name: str,
        requests: list[ActiveRequest],
        depth: Ints,
        width: Ints,
        reading: Reading | None,
        q_rows: bool,
        log_q: bool,
    ) -> DraftWork:
        opens, parts = [], []
        keep = np.zeros(len(requests), np.int32)
        for index, active in enumerate(requests):
            seen = active.seen.setdefault(name, 0)
            if not seen:
                opens.append(active.opening())
                seen = active.known
            keep[index] = seen
            parts.append(active.tokens(seen))
        frees, self._frees[name] = tuple(self._frees[name]), []
        self._sequence += 1
        return DraftWork(
            tags=np.fromiter((active.key for active in requests), np.int32, len(requests)),
            keep=keep,
            offsets=np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32),
            tokens=np.concatenate(parts).astype(np.int32),
            depth=depth,
            width=width,
            rounds=np.fromiter((active.rounds for active in requests), np.int32, len(requests)),
            q_rows=q_rows,
            log_q=log_q,
            opens=tuple(opens),
            frees=frees,
            sequence=self._sequence,
            epoch=self._epochs[name],
            origin=self._origin,
            reading=reading,
            patience=self._deadline if reading is None else 0.0,
            plain=self._plain() or 0.0,
            needed=_needed(requests, self._clock.now()) if reading is None else 0.0,
        )

    def _note(self, call: _Call, reply: DraftReply) -> None:
        """What the drafter holds of the requests that are still there. They only grow, so it holds their beginning
        however long the call took."""
        name = call.name
        self._epochs[name] = reply.epoch
        for active, status, seen in zip(call.requests, reply.status.tolist(), reply.seen.tolist()):
            if name not in active.seen:
                continue  # gone since, and to be freed
            if status == RowStatus.STALE:
                del active.seen[name]
            else:
                active.seen[name] = seen

    def _failed(self, call: _Call, error: BaseException) -> None:
        """What the drafter made of it is not known: it is told again what to free, and all of the call's rows."""
        self._frees[call.name].extend(call.work.frees)
        for active in call.requests:
            if call.name in active.seen:
                active.seen[call.name] = 0
        self._epochs[call.name] = 0
        if not isinstance(error, CoveyError):
            log.error("drafter %s raised what no drafter should", call.name, exc_info=error)
            error = PortError(f"{type(error).__name__}: {error}")
        if isinstance(error, StubDead) and self._roster.lost(call.name, call.begun):
            error = PortError(str(error))  # that is known: by now another process may be there, which has not died
        self._roster.failed(call.name)
        self._tell(call.name, error)

    def _tell(self, name: str, error: CoveyError) -> None:
        log.warning("drafter %s: %s; its rows decode plainly", name, error)
        if self._report is not None:
            self._report(name, error)


def _needed(requests: list[ActiveRequest], now: float) -> float:
    """Seconds until the first of them misses its objective, if one has one; not 0 where that has been missed."""
    left = min(active.deadline for active in requests) - now
    return 0.0 if math.isinf(left) else max(LEAST_NEEDED, left)


def _chances(batch: Batch, reader: Reader) -> Floats:
    """`Reading.chances` of what is to be judged."""
    said: list[list[float]] = []
    for row, judge in zip(reader.rows.tolist(), reader.judge.tolist()):
        active = batch.rows[row]
        count = active.known - max(judge, active.request.num_prompt) if judge >= 0 else 0
        said.append(active.chances[-count:] if count else [])
    most = max(map(len, said))
    if not most:
        return NO_FLOATS
    chances = np.zeros((len(said), most), np.float32)
    for row, each in enumerate(said):
        chances[row, most - len(each) :] = each
    return chances


def _hear(call: _Call, judged: Judged) -> None:
    bounds, hits = judged.offsets.tolist(), judged.hits.tolist()
    numbers = (judged.read.tolist(), judged.first.tolist(), judged.prompt_log_q.tolist(), judged.prompt_tokens.tolist())
    for row, (active, read, first, log_q, tokens) in enumerate(zip(call.requests, *numbers)):
        if call.name in active.seen:
            heard = active.heard.setdefault(call.name, Heard())
            heard.add(read, first, hits[bounds[row] : bounds[row + 1]], log_q, tokens)


def _joined(rows: int, proposals: list[tuple[list[int], Trees]]) -> Trees:
    """The drafters' trees in the batch's row order."""
    if len(proposals) == 1 and proposals[0][0] == list(range(rows)):
        return proposals[0][1]
    sizes = np.zeros(rows, np.int32)
    slices: dict[int, tuple[Trees, int, int]] = {}
    for indices, trees in proposals:
        bounds = trees.offsets.tolist()
        for position, row in enumerate(indices):
            start, end = bounds[position], bounds[position + 1]
            if end > start:
                sizes[row] = end - start
                slices[row] = (trees, start, end)
    if not slices:
        return Trees.empty(rows)
    ordered = [slices[row] for row in sorted(slices)]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    places = max(0 if trees.q_ids is None else trees.q_ids.shape[1] for trees, _, _ in ordered)
    q_rows = [_q_rows(*each, places) for each in ordered] if places else []
    return Trees(
        offsets,
        np.concatenate([trees.tokens[start:end] for trees, start, end in ordered]),
        np.concatenate([trees.parents[start:end] for trees, start, end in ordered]),
        _of_all(ordered, lambda trees: trees.scores),
        np.concatenate([ids for ids, _ in q_rows]) if q_rows else None,
        np.concatenate([probs for _, probs in q_rows]) if q_rows else None,
        _of_all(ordered, lambda trees: trees.log_q),
    )


def _of_all(ordered: list[tuple[Trees, int, int]], scores: Callable[[Trees], Floats]) -> Floats:
    """The nodes' scores; of no node where a drafter gives none, for they could not be compared."""
    if not all(len(scores(trees)) for trees, _, _ in ordered):
        return NO_FLOATS
    return np.concatenate([scores(trees)[start:end] for trees, start, end in ordered])


def _q_rows(trees: Trees, start: int, end: int, places: int) -> tuple[Ints, Floats]:
    """The nodes' q rows, `places` wide. Where a drafter shipped none, the row says that its token was certain, which
    is what the rejection rule takes a node without a row for: right whatever the token came from."""
    if trees.q_ids is not None and trees.q_probs is not None and trees.q_ids.shape[1] == places:
        return trees.q_ids[start:end], trees.q_probs[start:end]
    ids, probs = np.zeros((end - start, places), np.int32), np.zeros((end - start, places), np.float32)
    if trees.q_ids is None or trees.q_probs is None:
        ids[:, 0], probs[:, 0] = trees.tokens[start:end], 1.0
    else:
        width = trees.q_ids.shape[1]
        ids[:, :width], probs[:, :width] = trees.q_ids[start:end], trees.q_probs[start:end]
    return ids, probs
