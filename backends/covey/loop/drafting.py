"""Collects a round's drafts. Each planned drafter gets one call, in its own thread and with a deadline. Its trees are
joined with the offers of the lookups (`covey.loop.lookups`).

A drafter that is missing, late, stale or broken proposes nothing this round, and its rows decode plainly. The roster
says which drafters can be asked. A channel (`covey.loop.channel`) holds the calls and state of one drafter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait

import numpy as np

from covey.contracts.ports import Clock
from covey.contracts.types import LOOKUP, NO_INTS, Ints, Offer, RowStatus, TargetReply, TargetWork, Trees
from covey.loop.channel import Channel
from covey.loop.lookups import Lookups, trees_of
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan
from covey.requests.scheduler import Batch
from covey.trees.joining import joined

log = logging.getLogger("covey.engine")

MISSED = 64  # tokens of one text: at this lag an unused head is no longer sent the states
IDLE = 16  # rounds without a head's drafts, after which it is no longer sent the states of prompts
SENDING = 0.0005  # seconds to let the calls leave: only one thread at a time can run Python


class Drafting:
    """Owns the channels to an engine's drafters."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        roster: Roster,
        clock: Clock,
        deadline: float,
        lookups: Lookups | None = None,
    ) -> None:
        self._channels = channels
        self._lookups = lookups
        self._roster = roster
        self._clock = clock
        self._deadline = deadline
        self._without_head = 0  # decoding rounds since a head last drafted

    def draft(self, batch: Batch, plan: Plan, meanwhile: Callable[[], None]) -> Drafted:
        """Return proposals for every row of the batch, empty for rows without any. `meanwhile` is called while drafters
        work."""
        answered = np.zeros(len(batch.rows), np.bool_)
        asked = self._rows_by_drafter(batch, plan)
        offered = [row for row, name in enumerate(plan.drafter) if name == LOOKUP]
        own = self._drafted_by_own_head(batch, plan)
        if not asked and not offered and not own:
            return Drafted(Trees.empty(len(batch.rows)), answered)
        started = self._clock.now()
        calls = {name: self._channels[name].draft(batch, rows, plan, self._deadline) for name, rows in asked.items()}
        proposals: list[tuple[list[int], Trees]] = []
        seconds: dict[str, float] = {}
        catch_up: dict[str, float] = {}
        if calls:
            wait((call.future for call in calls.values()), SENDING)
            meanwhile()
        if own:
            answered[own] = True
            seconds[self._roster.own_head] = 0.0  # the target spent them
            chains = [batch.rows[row].next_drafts[: plan.depth[row]] for row in own]
            proposals.append((own, Trees.chains(chains)))
        if offered and self._lookups is not None:
            self._lookups.taken()
            answered[offered] = True
            proposals.append((offered, trees_of([batch.rows[row] for row in offered], plan.depth[offered].tolist())))
        for name, call in calls.items():
            reply = self._channels[name].reply(call, self._deadline - (self._clock.now() - started))
            if reply is not None:
                seconds[name], catch_up[name] = reply.draft_seconds, reply.catch_up_seconds
                answered[asked[name]] = (reply.status != RowStatus.STALE) & (reply.seen == call.lengths)
                proposals.append((asked[name], reply.trees))
        return Drafted(joined(len(batch.rows), proposals), answered, seconds, catch_up, plan.drafter)

    def tell(self, name: str, requests: list[ActiveRequest]) -> None:
        """Send a drafter the tokens that it lacks of the requests, unless it cannot be asked or has a call outstanding.
        Waits for no answer."""
        if requests and self._roster.serves(name):
            self._channels[name].tell(requests)

    def states_from(self, batch: Batch, plan: Plan) -> Ints:
        """Return for each row the first position whose state its head needs, -1 for none. Empty if there is no head.

        A head that drafts needs all states. An unused head gets the missing states of a text while they are
        few, and those of prompts while it has drafted lately.
        """
        head = self._head
        if head is None:
            return NO_INTS
        drafted = [depth if name == head.name else 0 for name, depth in zip(plan.drafter, plan.depth.tolist())]
        if batch.decoding:
            self._without_head = 0 if any(drafted) else self._without_head + 1
        found = np.full(len(batch.rows), -1, np.int32)
        for row, active in enumerate(batch.rows):
            if self._comes_with_pass(head.name, active):
                continue  # the target reads them itself
            first = head.first_state(active)
            if row >= batch.decoding:
                wanted = self._without_head < IDLE and active.request.drafter in ("", head.name)
            else:
                wanted = plan.drafter[row] == head.name and active.num_tokens - first < MISSED
            if wanted or drafted[row]:
                found[row] = active.next_state(first)
        return found if (found >= 0).any() else NO_INTS

    def take_states(self, batch: Batch, work: TargetWork, reply: TargetReply) -> None:
        """Keep the states that the target shipped until the head has been sent them."""
        head = self._head
        if head is None or not len(reply.state_offsets):
            return
        bounds, firsts = reply.state_offsets.tolist(), work.states_from.tolist()
        for active, first, start, end in zip(batch.rows, firsts, bounds, bounds[1:]):
            if end > start:
                active.add_states(first, reply.states[start:end], head.first_state(active))

    def take_drafts(self, batch: Batch, work: TargetWork, reply: TargetReply) -> None:
        """Keep the drafts of the target's own head for the next round."""
        if len(work.next_depth) and len(reply.draft_offsets):
            ends, bounds = (reply.offsets[1:] - reply.offsets[:-1]).tolist(), reply.draft_offsets.tolist()
            for active, emitted, start, end in zip(batch.rows, ends, bounds, bounds[1:]):
                tokens = reply.draft_tokens[start:end].tolist()
                if tokens:
                    active.own_drafts = Offer(active.num_tokens + emitted, tokens, [])
        elif work.next_depth.any() and len(reply.tokens):
            log.warning("the target's own head has failed: %s drafts in its own process", self._roster.own_head)
            self._roster.own_head_failed()

    @property
    def _head(self) -> Channel | None:
        """Return the channel of the drafter that reads the target's states, if any. The target makes states for only
        one."""
        return next((channel for channel in self._channels.values() if channel.state_width), None)

    def settle(self) -> None:
        """Take the replies of calls that have ended without anyone waiting."""
        for channel in self._channels.values():
            channel.settle()

    def forget(self, active: ActiveRequest) -> None:
        """Forget a request that has ended. Each drafter that may hold its tag frees it with its next call."""
        for name in active.seen:
            self._channels[name].frees.append(active.key)
        active.seen.clear()

    def drop(self, name: str, requests: Iterable[ActiveRequest]) -> None:
        """Note that a drafter leaves memory. After a reload it has seen none of these requests."""
        self._channels[name].drop(requests)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _comes_with_pass(self, name: str, active: ActiveRequest) -> bool:
        """Return whether this drafter's drafts of the request come with the target's replies."""
        return self._roster.comes_with_pass(name, coupled=active.coupled)

    def _drafted_by_own_head(self, batch: Batch, plan: Plan) -> list[int]:
        """Return the rows whose drafts came with the last reply."""
        rows = np.flatnonzero(plan.depth).tolist()
        mine = [row for row in rows if self._comes_with_pass(plan.drafter[row], batch.rows[row])]
        return [row for row in mine if batch.rows[row].next_drafts]

    def _rows_by_drafter(self, batch: Batch, plan: Plan) -> dict[str, list[int]]:
        """Return the rows to draft for, by drafter. Leaves out drafters that cannot be asked."""
        asked: dict[str, list[int]] = {}
        for row in np.flatnonzero(plan.depth).tolist():
            name = plan.drafter[row]
            if name != LOOKUP and not self._comes_with_pass(name, batch.rows[row]):
                asked.setdefault(name, []).append(row)
        serving = {name: rows for name, rows in asked.items() if self._roster.serves(name)}
        head = self._head
        if head is not None and head.name in serving:
            ready = [row for row in serving.pop(head.name) if head.ready(batch.rows[row])]
            if ready:
                serving[head.name] = ready
        return serving
