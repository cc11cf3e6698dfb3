"""The scheduler decides admission, priorities, chunked prefill and preemption. Owns every request's progress.

    waiting --admit--> running --finish--> gone
       ^------preempt-----'

Knows neither Triton nor drafters. The target owns the blocks; the scheduler counts them.

One order rules admission, the prompts' share of the token budget and, reversed, preemption: higher priority first, then
earlier due time. A request is due at the deadline of its next token; without an objective, `PATIENCE` after its
arrival. If it can no longer meet its objective, the later of the two holds. So requests without objectives keep their
order of arrival, urgent ones overtake them, and no request is overtaken for ever.

Shares come before this order (`covey.requests.shares`): the tenant that was charged less goes first. It may take
running places, or places in a full queue, from a tenant that exceeds its share. If it waits for a first token where
passes are long, it gets a pass without the others.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from covey.contracts.errors import Overloaded
from covey.contracts.profile import SchedulerSettings
from covey.contracts.tenants import TenantRules
from covey.contracts.types import Ints, Open, Request
from covey.requests.active import ActiveRequest
from covey.requests.pace import Pace
from covey.requests.shares import Shares
from covey.requests.suspects import Suspects

PATIENCE = 10.0  # seconds
GROWTH = 64  # tokens reserved for each running request's growth at admission
LONGEST_REST = 60  # the most seconds that a refused caller is told to wait
SPARED = 0.9  # prompts may fill this share of the time that objectives allow a round
GRAMMARS = 8192  # bytes of new grammars in a pass, or one grammar: the longest take 50 ms to open, and others wait
SCORED = 128  # prompt tokens with log-probabilities in a pass: each has a logit for every id of the vocabulary
FEW_SCORED = 32  # ... while rounds are long; on a CPU they are scored as fast, and others wait less
MANY = 16  # the least tokens of others that a pass for first tokens leaves out
SPREAD = 8  # rounds over which a row's lead or delay is spread
Allowance = Callable[[int, float, float, float], int | None]


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one round, and how many known tokens (`chunk`) each computes; decoding rows come first."""

    rows: list[ActiveRequest]
    chunk: Ints
    opens: tuple[Open, ...]
    frees: tuple[int, ...]
    decoding: int  # number of decoding rows, which need no prefill
    now: float = 0.0  # when the scheduler planned it
    fastest: float = 0.0  # the shortest seconds per token of a row in recent rounds; 0: unknown
    shared: bool = False  # whether several tenants have running or waiting requests
    joining: int = 0  # running requests whose prompts are not read yet, whether in this pass or later


class Scheduler:
    """Owns the waiting queue and the running set."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        token_budget: int,
        block_size: int,
        growth_tokens: int = GROWTH,
        tenants: TenantRules | None = None,
    ) -> None:
        """`tenants` holds weights and limits; without it all tenants are equal."""
        self.max_running = min(max_running, token_budget)
        self.max_waiting = max_waiting
        self.token_budget = token_budget
        self.growth_tokens = growth_tokens
        self.block_size = block_size
        self.pace = Pace()
        self.waiting: list[ActiveRequest] = []
        self.running: dict[int, ActiveRequest] = {}
        self.shares = Shares(tenants or TenantRules())
        self._frees: list[int] = []
        self.preemptions = 0
        self._suspects = Suspects()
        self._hurried = False  # whether the last pass was only of tenants that wait for a first token

    @classmethod
    def of(cls, settings: SchedulerSettings, block_size: int, **others: Any) -> Scheduler:
        """Return a scheduler for a profile's section; `others` are arguments from elsewhere."""
        return cls(**asdict(settings), block_size=block_size, **others)

    def full(self, tenant: str, pending: int = 0, own: int = 0) -> str:
        """Return why a request of this tenant may not join the queue, or "". `pending` other requests are about to
        join, `own` of them the tenant's. In a full queue, a tenant with few requests may take another's place.
        Thread-safe. Does not mutate."""
        waiting, rules = dict(self.shares.waiting), self.shares.rules
        mine = waiting.get(tenant, 0) + own
        if rules.max_waiting and mine >= rules.max_waiting:
            return f"queue full: {mine} requests of this tenant are waiting"
        if len(self.waiting) + pending < self.max_waiting:
            return ""
        longest = max((count / rules.weight(each) for each, count in waiting.items()), default=0.0)
        if (mine + 1) / rules.weight(tenant) < longest and pending < self.max_waiting:
            return ""
        return f"queue full: {self.max_waiting} requests are waiting"

    def submit(self, request: Request, now: float) -> ActiveRequest | None:
        """Queue a request. Return another one that had to leave the queue for it, or None. Raises Overloaded if the
        queue is full."""
        problem = self.full(request.tenant)
        if problem:
            raise Overloaded(f"{problem}; {self.retry_advice()}")
        active = ActiveRequest(request)
        self.shares.came(request.tenant)
        try:
            active.due = self._due(active, now)
            displaced = self._last_of_longest() if len(self.waiting) >= self.max_waiting else None
        except Overloaded:
            self.shares.left(request.tenant)
            raise
        if displaced is not None:
            self.finish(displaced)
        bisect.insort(self.waiting, active, key=_urgency)
        return displaced

    def retry_advice(self) -> str:
        """Return a text that says when to retry: after all present requests are done, at the recent pace."""
        tokens = sum(active.room for active in (*self.running.values(), *self.waiting))
        seconds = math.ceil(tokens * self.pace.token_seconds / self.max_running)
        return f"try again in {min(max(seconds, 1), LONGEST_REST)} s"

    def find(self, key: int) -> ActiveRequest | None:
        """Return the running or waiting request with that key, or None. Does not mutate."""
        return self.running.get(key) or next((active for active in self.waiting if active.key == key), None)

    def finish(self, active: ActiveRequest) -> None:
        """Forget a request. The next pass frees it on the target."""
        if self.running.pop(active.key, None) is None:
            self.waiting.remove(active)
            self.shares.left(active.request.tenant)
        else:
            self.shares.ended(active.request.tenant, active.room)
        self._close(active)

    def make_room(self, now: float) -> ActiveRequest | None:
        """Preempt the least urgent request because the pool is exhausted. If it runs alone, it is too big: return it
        instead. Do nothing if the next pass frees blocks anyway."""
        if self._frees:
            return None
        active = self._by_urgency(self.running.values(), now)[-1]
        if len(self.running) == 1:
            return active
        self._preempt(active)
        return None

    def reopen(self, active: ActiveRequest) -> None:
        """Make the next pass open a request again, because the target has lost its tag."""
        active.opened, active.own_drafts = False, None
        active.num_cached_tokens = 0

    def target_died(self, batch: Batch, now: float) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """Reopen all running requests, and return `Suspects.died` for the rows of the fatal pass."""
        for active in self.running.values():
            self.reopen(active)
        return self._suspects.died(batch.rows, now)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting and not self._frees

    def admit(self, free_blocks: int, now: float, allowance: Allowance = lambda *_: None) -> Batch:
        """Admit requests that fit, and return the next pass: decoding rows first, then prefill chunks within the
        remaining budget, the most urgent first. `allowance` is `Planner.prefill_allowance`."""
        self._admit(free_blocks, now)
        running = self._hurry(self._suspects.passable(list(self.running.values()), now))
        rows = [active for active in running if active.decoding]
        decoding = len(rows)
        chunk = [1] * decoding
        budget = self.token_budget - decoding
        opens = []
        prefilling = self._by_urgency((each for each in running if not each.decoding), now)
        if prefilling:
            limit, tpot = self._round_limit(rows, now)
            tokens = allowance(decoding, decoding * self.pace.drafts, tpot, limit - self.pace.overhead)
            if tokens is not None:
                hurried = [active for active in prefilling if limit < math.inf or active.deadline < math.inf]
                budget = min(budget, max(tokens, 1, self._prompt_tokens_due(hurried, now)))
        grammars, scored = 0, FEW_SCORED if self.pace.long else SCORED
        for active in prefilling:
            if budget <= 0:
                break
            grammar = 0 if active.opened else len(active.request.sampling.grammar)
            if grammar and grammars and grammars + grammar > GRAMMARS:
                continue
            grammars += grammar
            size = min(budget, active.num_tokens - active.num_cached_tokens)
            if active.scoring:
                size = min(size, scored)
                if not size:
                    continue
                scored -= size
            budget -= size
            rows.append(active)
            chunk.append(size)
            if not active.opened:
                opens.append(active.opening())
                active.open_sent = True
        frees, self._frees = tuple(self._frees), []
        shared, chunks = self.shares.several(), np.asarray(chunk, np.int32)
        return Batch(rows, chunks, tuple(opens), frees, decoding, now, self.pace.fastest, shared, len(prefilling))

    def _hurry(self, running: list[ActiveRequest]) -> list[ActiveRequest]:
        """Return the requests of this pass: usually all. If rounds are long, a tenant with less than its share that
        waits for a first token gets a pass without the others. The next pass is of all again."""
        hurried, self._hurried = self._hurried, False
        if hurried or not self.shares.several() or not self.pace.long:
            return running
        waiting = {active.request.tenant for active in running if not active.output}
        lacking = {tenant for tenant in waiting if self.shares.lacks(tenant)}
        alone = [active for active in running if active.request.tenant in lacking]
        others = [active for active in running if active.request.tenant not in lacking]
        own = sum(active.num_tokens - active.num_cached_tokens for active in alone)
        left_out = sum(active.num_tokens - active.num_cached_tokens for active in others)
        if not alone or min(left_out, self.token_budget) < max(MANY, own):
            return running
        self._hurried = True
        return alone

    def unsent(self, batch: Batch) -> None:
        """Move the tags that an unsent pass would have freed to the next pass."""
        self._frees.extend(batch.frees)

    def drop(self, frees: tuple[int, ...]) -> None:
        """Do not send these tags to the target to be freed."""
        self._frees = [tag for tag in self._frees if tag not in frees]

    def _preempt(self, active: ActiveRequest) -> None:
        del self.running[active.key]
        self._close(active)
        active.num_cached_tokens, active.own_drafts = 0, None
        self.preemptions += 1
        self.shares.returned(active.request.tenant, active.num_tokens + active.room)
        bisect.insort(self.waiting, active, key=_urgency)

    def _admit(self, free_blocks: int, now: float) -> None:
        """Run waiting requests while there is room, or in places of tenants that exceed their share. The next pass
        frees a preempted request's blocks. Preemption costs recomputation, so a tenant that already runs gets at most
        one such place per pass."""
        if not self.waiting or (len(self.running) >= self.max_running and not self.shares.several()):
            return
        spare = free_blocks - sum(self._blocks(active) - self._held(active) for active in self.running.values())
        given = False
        while (active := self._next(now)) is not None:
            tenant, needed = active.request.tenant, self._blocks(active)
            short = needed > spare and self.running
            if short or len(self.running) >= self.max_running:
                loser = None if given and tenant in self.shares.running else self._loser(tenant, now)
                if loser is None:
                    break
                given = True
                spare += self._blocks(loser) - self._held(loser)
                self._preempt(loser)
                if short:
                    break
            spare -= needed
            self.waiting.remove(active)
            self.running[active.key] = active
            active.admitted = now if active.admitted is None else active.admitted
            self.shares.admitted(tenant, active.num_tokens + active.room)

    def _next(self, now: float) -> ActiveRequest | None:
        """Return the waiting request to admit first, or None. Candidates are the most urgent one of each tenant that
        may run more. Tenants that lack a place come first, then those that were charged least."""
        while True:
            heads: dict[str, ActiveRequest] = {}
            for active in self.waiting:
                heads.setdefault(active.request.tenant, active)
                if len(heads) == len(self.shares.waiting):
                    break
            able = [active for tenant, active in heads.items() if self.shares.may_run(tenant)]
            if not able:
                return None
            lacking = [active for active in able if self.shares.lacks(active.request.tenant)]
            first = min(lacking or able, key=self._order)
            due = self._due(first, now)
            if due == first.due:
                return first
            self.waiting.remove(first)  # whether it is hopeless has changed meanwhile
            first.due = due
            bisect.insort(self.waiting, first, key=_urgency)

    def _loser(self, tenant: str, now: float) -> ActiveRequest | None:
        """Return the running request to preempt for one of `tenant`, or None if no tenant exceeds its share."""
        other = self.shares.over(tenant)
        if other is None:
            return None
        return self._by_urgency((each for each in self.running.values() if each.request.tenant == other), now)[-1]

    def _last_of_longest(self) -> ActiveRequest:
        """Return the least urgent request of the tenant with the longest queue, out of those without output. Raises
        Overloaded if all have output."""
        longest = self.shares.longest()
        for active in reversed(self.waiting):
            if active.request.tenant == longest and not active.output:
                return active
        raise Overloaded(f"queue full: {self.max_waiting} requests are waiting")

    def _due(self, active: ActiveRequest, now: float) -> float:
        """Return when the request's next token is due. Does not mutate. A request that became hopeless is due no
        earlier than before, so only the first of a queue must be checked again."""
        deadline, unhurried = active.deadline, active.request.arrival + PATIENCE
        if deadline == math.inf:
            return unhurried
        return max(deadline, unhurried) if active.hopeless(now, self.pace.fastest) else deadline

    def _by_urgency(self, requests: Iterable[ActiveRequest], now: float) -> list[ActiveRequest]:
        """Return the requests by their present urgency, the most urgent first."""
        found = list(requests)
        for active in found:
            active.due = self._due(active, now)
        return sorted(found, key=self._order)

    def _order(self, active: ActiveRequest) -> tuple[int, tuple[int, float, float, int]]:
        return self.shares.rank(active.request.tenant), _urgency(active)

    def _round_limit(self, decoding: list[ActiveRequest], now: float) -> tuple[float, float]:
        """Return how long a round may last if all these rows must meet their objectives, and their tightest TPOT. It
        assumes the recent tokens per row, and spreads a row's lead or delay over `SPREAD` rounds. Hopeless rows do not
        count. Does not mutate."""
        fastest, tokens = self.pace.fastest, SPARED * max(1.0, self.pace.row_tokens)
        least = tightest = math.inf
        for active in decoding:
            tpot = active.request.objective.tpot
            if tpot < math.inf and not active.hopeless(now, fastest):
                least = min(least, tokens * tpot + (active.deadline - tpot - now) / SPREAD)
                tightest = min(tightest, tpot)
        return least, tightest

    def _prompt_tokens_due(self, prefilling: list[ActiveRequest], now: float) -> int:
        """Return how many tokens of these prompts a round must compute, at the recent pace, to meet the due time of
        each next token. Does not mutate."""
        most, tokens, round_seconds = 0.0, 0, self.pace.seconds
        for active in prefilling:
            tokens += active.num_tokens - active.num_cached_tokens
            left = (active.due - now) // round_seconds if round_seconds else 1.0
            most = max(most, tokens / max(1.0, left))
        return math.ceil(most)

    def _blocks(self, active: ActiveRequest) -> int:
        """Return the blocks for a request's tokens and some of its growth."""
        return -(-(active.num_tokens + min(active.room, self.growth_tokens)) // self.block_size)

    def _held(self, active: ActiveRequest) -> int:
        return -(-active.num_cached_tokens // self.block_size)

    def _close(self, active: ActiveRequest) -> None:
        if active.open_sent:
            self._frees.append(active.key)
            active.opened = active.open_sent = False


def _urgency(active: ActiveRequest) -> tuple[int, float, float, int]:
    """Return a sort key, the most urgent first, by the due times last computed."""
    return (-active.request.priority, active.due, active.request.arrival, active.key)
