"""How many drafts of each drafter a request may expect to have accepted.

    rate     of a request, drafter and draft position: sigmoid(logit(rate of its neighbours) + shift)
    shift    of the request and drafter: first what the prompt says, that is how likely the drafter finds it beside
             what it finds of its neighbours' prompts; then its own rounds, drafted or replayed, beside theirs

The neighbours are the tenant's latest requests with prompts alike (`neighbours`); they lean on all of the tenant's.
A rate is of rounds, not of single hits: rounds start after misses, and hits cluster. Of a request only its last rounds
count, so that a text may change its domain; what tenants teach stays with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.active import ActiveRequest
from covey.planner.drafters.neighbours import Neighbours
from covey.planner.drafters.replay import Replay

Array = npt.NDArray[np.float64]

FIRST = 0.6  # the first position's rate before anything is seen
LEAN = 4.0  # rounds that the tenant's rates are worth to neighbours, and those of the position before to the tenant
TENANT = 2000.0  # rounds of a tenant that count
OWN = 48.0  # drafts of a request that count
PRIOR = 6.0  # drafts that neighbours are worth to a request
SPREAD = 0.5  # deviation of requests from their neighbours, in log odds
LIKELIHOOD = 0.7  # log odds of a hit by nat per prompt token; on the bundled pair .69 to .75 over 16 to 64 tokens
ALIKE = 4.0  # prompts after which a drafter's own mean counts as much as the mean over drafters
TENANTS = 64
EDGE = 0.02  # rates stay so far from 0 and 1


class _Tenant:
    """All of its requests, and its latest ones apart."""

    def __init__(self, drafters: int, depth: int) -> None:
        self.neighbours = Neighbours(drafters, depth)
        self._counts = np.zeros((2, drafters, depth))  # drafts looked at, accepted

    def add(self, number: int, drafter: int, looked: int, accepted: int) -> None:
        counts = self._counts[:, drafter]
        if counts[0, 0] >= TENANT:
            counts *= 1.0 - 1.0 / TENANT
        counts[0, :looked] += 1.0
        counts[1, :accepted] += 1.0
        self.neighbours.add(number, drafter, looked, accepted)

    def rates(self) -> Array:
        """[drafters, depth]. Does not mutate."""
        looked, accepted = self._counts
        rates: Array = np.empty_like(looked)
        before = np.full(len(looked), FIRST)
        for at in range(looked.shape[1]):
            rates[:, at] = before = (accepted[:, at] + LEAN * before) / (looked[:, at] + LEAN)
        return rates


@dataclass(slots=True)
class Belief:
    """Of one request. By drafter: drafts that were looked at, accepted, and expected by its neighbours' rates; how
    likely it found the prompt; what the neighbours taught when that was last looked up."""

    tenant: _Tenant
    number: int
    looked: Array
    accepted: Array
    expected: Array
    likely: Array  # mean log q of a prompt token, where judged
    rates: Array  # [drafters, depth]
    rounds: Array
    hint: Array  # log odds
    replays: list[Replay]
    prompt_heard: list[bool]
    drafter: int = -1  # in use
    why: str = ""


class Beliefs:
    """Owns what tenants taught; a request's own part stays with it (`ActiveRequest.belief`)."""

    def __init__(self, names: Sequence[str], depth: int) -> None:
        self._names = list(names)
        self._depth = depth
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def of(self, active: ActiveRequest) -> Belief:
        """Made when it is first asked for."""
        belief: Belief | None = active.belief
        if belief is None:
            count, tenant = len(self._names), self._tenant(active.request.tenant)
            belief = active.belief = Belief(
                tenant,
                tenant.neighbours.join(active.request.prompt),
                looked=np.zeros(count),
                accepted=np.zeros(count),
                expected=np.zeros(count),
                likely=np.zeros(count),
                rates=np.full((count, self._depth), FIRST),
                rounds=np.zeros(count),
                hint=np.zeros(count),
                replays=[Replay(self._depth) for _ in range(count)],
                prompt_heard=[False] * count,
            )
            self.look_around([active])
        return belief

    def look_around(self, rows: Sequence[ActiveRequest]) -> None:
        """Look up what the requests' neighbours have taught by now."""
        by_tenant: dict[int, list[Belief]] = {}
        for active in rows:
            belief = self.of(active)
            by_tenant.setdefault(id(belief.tenant), []).append(belief)
        for beliefs in by_tenant.values():
            tenant = beliefs[0].tenant
            counts, likely = tenant.neighbours.of([belief.number for belief in beliefs])
            looked, accepted = counts[:, 0], counts[:, 1]
            rates = np.clip((accepted + LEAN * tenant.rates()) / (looked + LEAN), EDGE, 1.0 - EDGE)
            for at, belief in enumerate(beliefs):
                belief.rates, belief.rounds = rates[at], looked[at, :, 0]
                told = belief.prompt_heard
                if any(told):
                    usual = likely[at, 0] * likely[at, 1] + ALIKE * belief.likely[told].mean()
                    belief.hint = np.where(told, LIKELIHOOD * (belief.likely - usual / (likely[at, 0] + ALIKE)), 0.0)

    def drafted(self, active: ActiveRequest, drafter: int, looked: int, accepted: int) -> None:
        """A round of the request in which that drafter drafted; its tokens are part of the text."""
        belief = self.of(active)
        if looked:
            self._record(belief, drafter, min(looked, self._depth), min(accepted, self._depth))
        belief.replays[drafter].skip(active.known)

    def hear(self, active: ActiveRequest) -> None:
        """Take what drafters said of its text since the last time."""
        belief = self.of(active)
        for name, heard in active.heard.items():
            drafter = self._names.index(name)
            replay = belief.replays[drafter]
            if heard.end > replay.end:
                for looked, accepted in replay.take(heard.start, heard.hits):
                    self._record(belief, drafter, looked, accepted)
            if heard.prompt_tokens and not belief.prompt_heard[drafter]:
                belief.prompt_heard[drafter] = True
                belief.likely[drafter] = heard.prompt_log_q / heard.prompt_tokens
                belief.tenant.neighbours.judged(belief.number, drafter, belief.likely[drafter])

    def expected(self, rows: Sequence[ActiveRequest], deviations: float | Array = 0.0) -> Array:
        """Tokens of a round as [rows, drafters, depth + 1], plain decoding first; so many deviations above what is
        likeliest, of all rows or of each."""
        beliefs = [self.of(active) for active in rows]
        rates, looked, accepted, expected, hint, rounds = (
            np.stack([getattr(belief, name) for belief in beliefs])
            for name in ("rates", "looked", "accepted", "expected", "hint", "rounds")
        )
        odds = _logit(rates)
        usual = np.where(looked > 0, expected / np.maximum(looked, 1e-9), rates[:, :, 0])
        usual = np.clip(_sigmoid(_logit(usual) + hint), EDGE, 1.0 - EDGE)
        own = np.clip((accepted + PRIOR * usual) / (looked + PRIOR), EDGE, 1.0 - EDGE)
        shift = hint + _logit(own) - _logit(usual)
        if np.any(deviations):
            doubt = np.sqrt(1.0 / ((rounds + LEAN) * own * (1.0 - own)) + SPREAD**2 * PRIOR / (looked + PRIOR))
            shift += np.reshape(deviations, (-1, 1)) * doubt
        tokens = np.ones((*rates.shape[:2], self._depth + 1))
        tokens[:, :, 1:] += np.cumsum(np.cumprod(_sigmoid(odds + shift[:, :, None]), axis=2), axis=2)
        return tokens

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= TENANTS:
                self._tenants.popitem(last=False)
            tenant = self._tenants[name] = _Tenant(len(self._names), self._depth)
        self._tenants.move_to_end(name)
        return tenant

    def _record(self, belief: Belief, drafter: int, looked: int, accepted: int) -> None:
        keep = max(0.0, 1.0 - looked / OWN)
        belief.looked[drafter] = keep * belief.looked[drafter] + looked
        belief.accepted[drafter] = keep * belief.accepted[drafter] + accepted
        belief.expected[drafter] = keep * belief.expected[drafter] + float(belief.rates[drafter, :looked].sum())
        belief.tenant.add(belief.number, drafter, looked, accepted)


def _logit(rates: Array) -> Array:
    odds: Array = np.log(rates / (1.0 - rates))
    return odds


def _sigmoid(odds: Array) -> Array:
    rates: Array = 1.0 / (1.0 + np.exp(-odds))
    return rates
