"""How many drafts of each drafter a request may expect to have accepted.

    rate     of a request, drafter and draft position: sigmoid(logit(rate of the request's group) + shift)
    group    requests of one tenant whose prompts are alike (`neighbours`); it leans on all of the tenant's
    shift    of the request and drafter: first what the prompt says, that is how likely the drafter finds it beside
             what it finds of other prompts; then its own rounds, drafted or replayed, weighed against the group's

A rate is of rounds, not of single hits: rounds start after misses, and hits cluster. Of a request only its last rounds
count, so that a text may change its domain; what tenants teach stays with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from covey.active import ActiveRequest
from covey.planner.drafters.neighbours import Neighbours
from covey.planner.drafters.replay import Replay

Array = npt.NDArray[np.float64]

FIRST = 0.6  # the first position's rate before anything is seen
LEAN = 4.0  # rounds that the tenant's rates are worth to a group, and those of the position before to the tenant
GROUP = 500.0  # rounds of a group that count
OWN = 48.0  # drafts of a request that count
PRIOR = 6.0  # drafts that the group is worth to one of its requests
SPREAD = 0.5  # deviation of requests within a group, in log odds
LIKELIHOOD = 0.7  # log odds of a hit by nat per prompt token; on the bundled pair .69 to .75 over 16 to 64 tokens
ALIKE = 4.0  # prompts after which a drafter's own mean in the group counts as much as the mean over drafters
TENANTS = 256
EDGE = 0.02  # rates stay so far from 0 and 1


class _Rates:
    """Rounds of some requests: how many drafts were looked at and accepted, by drafter and position."""

    __slots__ = ("_accepted", "_looked", "_rates", "log_q", "prompts", "version")

    def __init__(self, drafters: int, depth: int) -> None:
        self._looked = np.zeros((drafters, depth))
        self._accepted = np.zeros((drafters, depth))
        self._rates: tuple[object, Array] | None = None
        self.version = 0
        self.prompts = np.zeros(drafters)  # that were judged, and the mean of their log q a token
        self.log_q = np.zeros(drafters)

    @property
    def rounds(self) -> Array:
        """By drafter."""
        return self._looked[:, 0]

    def add(self, drafter: int, looked: int, accepted: int) -> None:
        if self._looked[drafter, 0] >= GROUP:
            self._looked[drafter] *= 1.0 - 1.0 / GROUP
            self._accepted[drafter] *= 1.0 - 1.0 / GROUP
        self._looked[drafter, :looked] += 1.0
        self._accepted[drafter, :accepted] += 1.0
        self.version += 1

    def rates(self, lean: _Rates | None = None) -> Array:
        """[drafters, depth]. Does not mutate what is known."""
        key = self.version, lean and lean.version
        if self._rates is None or self._rates[0] != key:
            rates = np.empty_like(self._looked)
            before = np.full(len(rates), FIRST)
            usual = None if lean is None else lean.rates()
            for at in range(rates.shape[1]):
                base = before if usual is None else usual[:, at]
                rates[:, at] = before = (self._accepted[:, at] + LEAN * base) / (self._looked[:, at] + LEAN)
            self._rates = key, np.clip(rates, EDGE, 1.0 - EDGE)
        return self._rates[1]


@dataclass(slots=True)
class _Tenant:
    all: _Rates
    neighbours: Neighbours = field(default_factory=Neighbours)
    groups: list[_Rates] = field(default_factory=list)


@dataclass(slots=True)
class Belief:
    """Of one request. Drafts that were looked at, accepted, and expected by the group's rates, by drafter."""

    tenant: _Tenant
    group: _Rates
    looked: Array
    accepted: Array
    expected: Array
    hint: Array  # what the prompt says, log odds
    replays: list[Replay]
    prompt_heard: list[bool]
    drafter: int = -1  # in use
    why: str = ""


class Beliefs:
    """Owns what is believed of groups; a request's own part stays with it (`ActiveRequest.belief`)."""

    def __init__(self, names: Sequence[str], depth: int) -> None:
        self._names = list(names)
        self._depth = depth
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def of(self, active: ActiveRequest) -> Belief:
        """Made when it is first asked for."""
        belief: Belief | None = active.belief
        if belief is None:
            tenant = self._tenant(active.request.tenant)
            group = tenant.neighbours.join(active.request.prompt)
            if group == len(tenant.groups):
                tenant.groups.append(_Rates(len(self._names), self._depth))
            count = len(self._names)
            belief = active.belief = Belief(
                tenant,
                tenant.groups[group],
                np.zeros(count),
                np.zeros(count),
                np.zeros(count),
                np.zeros(count),
                [Replay(self._depth) for _ in range(count)],
                [False] * count,
            )
        return belief

    def drafted(self, active: ActiveRequest, drafter: int, looked: int, accepted: int) -> None:
        """A round of the request in which that drafter drafted; its tokens are part of the text."""
        belief = self.of(active)
        if looked:
            self._record(belief, drafter, min(looked, self._depth), min(accepted, self._depth))
        belief.replays[drafter].skip(active.known)

    def hear(self, active: ActiveRequest) -> None:
        """Take what drafters said of its text since the last time."""
        belief = self.of(active)
        fresh = []
        for name, heard in active.heard.items():
            drafter = self._names.index(name)
            replay = belief.replays[drafter]
            if heard.end > replay.end:
                for looked, accepted in replay.take(heard.start, heard.hits):
                    self._record(belief, drafter, looked, accepted)
            if heard.prompt_tokens and not belief.prompt_heard[drafter]:
                belief.prompt_heard[drafter] = True
                fresh.append(drafter)
        if fresh:
            self._hint(active, belief, fresh)

    def expected(self, rows: Sequence[ActiveRequest], deviations: float | Array = 0.0) -> Array:
        """Tokens of a round as [rows, drafters, depth + 1], plain decoding first; so many deviations above what is
        likeliest, of all rows or of each."""
        beliefs = [self.of(active) for active in rows]
        rates = np.stack([belief.group.rates(belief.tenant.all) for belief in beliefs])
        looked, accepted, expected, hint = (
            np.stack([getattr(belief, name) for belief in beliefs])
            for name in ("looked", "accepted", "expected", "hint")
        )
        odds = _logit(rates)
        usual = np.where(looked > 0, expected / np.maximum(looked, 1e-9), rates[:, :, 0])
        usual = _sigmoid(_logit(usual) + hint)
        own = np.clip((accepted + PRIOR * usual) / (looked + PRIOR), EDGE, 1.0 - EDGE)
        shift = hint + _logit(own) - _logit(usual)
        if np.any(deviations):
            rounds = np.stack([belief.group.rounds for belief in beliefs])
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
            tenant = self._tenants[name] = _Tenant(_Rates(len(self._names), self._depth))
        self._tenants.move_to_end(name)
        return tenant

    def _record(self, belief: Belief, drafter: int, looked: int, accepted: int) -> None:
        rates = belief.group.rates(belief.tenant.all)[drafter]
        keep = max(0.0, 1.0 - looked / OWN)
        belief.looked[drafter] = keep * belief.looked[drafter] + looked
        belief.accepted[drafter] = keep * belief.accepted[drafter] + accepted
        belief.expected[drafter] = keep * belief.expected[drafter] + float(rates[:looked].sum())
        belief.group.add(drafter, looked, accepted)
        belief.tenant.all.add(drafter, looked, accepted)

    def _hint(self, active: ActiveRequest, belief: Belief, fresh: list[int]) -> None:
        """What the likelihoods of the prompt say of those drafters that have judged it; it is new of some of them."""
        told = [drafter for drafter, heard in enumerate(belief.prompt_heard) if heard]
        heard = [active.heard[self._names[drafter]] for drafter in told]
        likely = np.array([each.prompt_log_q / each.prompt_tokens for each in heard])
        group = belief.group
        count = group.prompts[told]
        usual = (count * group.log_q[told] + ALIKE * likely.mean()) / (count + ALIKE)
        belief.hint[told] = LIKELIHOOD * (likely - usual)
        for drafter, each in zip(told, likely):
            if drafter in fresh:
                group.prompts[drafter] = min(GROUP, group.prompts[drafter] + 1.0)
                group.log_q[drafter] += (each - group.log_q[drafter]) / group.prompts[drafter]


def _logit(rates: Array) -> Array:
    odds: Array = np.log(rates / (1.0 - rates))
    return odds


def _sigmoid(odds: Array) -> Array:
    rates: Array = 1.0 / (1.0 + np.exp(-odds))
    return rates
