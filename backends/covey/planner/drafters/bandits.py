"""Implements drafter bandits as published, one for each request: it knows the rounds of its request alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from covey.bandits.drafters.choice import Bandit
from covey.bandits.drafters.policies import Policy, Setting
from covey.bandits.length import Situation
from covey.contracts.types import Hit, Ints
from covey.planner.drafters.policy import ASKED, Assignment, is_free
from covey.planner.lessons import tried
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Judge, Round
from covey.requests.scheduler import Batch

READ_TOKENS = 512  # the most that one call reads
PATIENCE = 4  # rounds that wait for what others say of them: who has drafted since says nothing, having read on


@dataclass(slots=True)
class _Played:
    """A round that waits to be judged by drafters that did not draft in it."""

    start: int  # position of its first draft
    depth: int
    rewards: list[float | None]  # None where not known yet


@dataclass(slots=True)
class _Choice:
    """The state that is kept for one request."""

    bandit: Bandit
    waiting: deque[_Played] = field(default_factory=deque)


class PerRequest:
    """Implements `DrafterPolicy`. A policy with full information (`Bandit.witness`) has every drafter read the whole
    text, whatever that costs, and learns of a round when all of them have, or after some rounds from those that did.
    Bandits know of the last round when they choose, as published; a round late they would play each arm twice."""

    patient = False

    def __init__(
        self, policy: Policy, names: Sequence[str], max_depth: int, *, seed: int = 0, tokenizer: str = ""
    ) -> None:
        """Raises SettingError if a parameter of the policy is out of range."""
        self._policy = policy
        self._names = list(names)
        self._max_depth = max_depth
        self._rng = np.random.default_rng(seed)
        self._tokenizer = tokenizer
        self._informed = policy.reward == "hits"
        self.divergence = policy.reward == "divergence"
        self._make(np.zeros(1, np.int32), 1)

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        serving = [index for index, name in enumerate(self._names) if roster.serves(name)]
        drafters, why = [], []
        for active in batch.rows[: batch.decoding]:
            free = is_free(active)
            if not free or not serving:
                drafters.append(active.request.drafter or self._names[0])
                why.append("first" if free else ASKED)
                continue
            choice = self._choice(active)
            self._witness(active, choice)
            holding = [index for index in serving if active.num_tokens < roster.positions(self._names[index])]
            drafters.append(self._names[choice.bandit.choose(holding or serving)])
            why.append(self._policy.name)
        return Assignment(tuple(drafters), tuple(why))

    def prepare(self, batch: Batch, roster: Roster) -> None:
        """Prepare nothing."""

    def judges(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Judge, ...]:
        if not self._informed:
            return ()
        rows = [(row, active) for row, active in enumerate(batch.rows[: batch.decoding]) if assigned.why[row] != ASKED]
        judges = []
        for name in self._names:
            longest = roster.positions(name)
            mine = [each for each in rows if assigned.drafters[each[0]] != name and each[1].num_tokens < longest]
            if mine and roster.serves(name):
                judge = [active.request.num_prompt for _, active in mine]
                indices = np.asarray([row for row, _ in mine], np.int32)
                judges.append(Judge(name, indices, np.asarray(judge, np.int32), READ_TOKENS))
        return tuple(judges)

    def learn(self, done: Round) -> None:
        if not done.drafted.answered.any():
            return
        reply = done.reply
        depths, accepted, emitted = tried(done).tolist(), reply.accepted.tolist(), np.diff(reply.offsets).tolist()
        for row, active in enumerate(done.batch.rows[: done.batch.decoding]):
            if depths[row] <= 0 or active.request.drafter:
                continue
            choice, drafter = self._choice(active), self._names.index(done.plan.drafter[row])
            reward = min(1.0, accepted[row] / depths[row])
            if self.divergence:
                reward = float(reply.divergence[row]) if len(reply.divergence) else -1.0
                if reward < 0.0:
                    continue  # nothing was proposed, or nobody computed it
            choice.bandit.update(drafter, reward, emitted[row])
            if self._informed:
                rewards: list[float | None] = [None] * len(self._names)
                rewards[drafter] = reward
                choice.waiting.append(_Played(active.num_tokens - emitted[row], depths[row], rewards))

    def observe(self, situation: Situation, depth: int) -> None:
        """Learn nothing."""

    def _choice(self, active: ActiveRequest) -> _Choice:
        choice: _Choice | None = active.belief
        if choice is None:
            request = active.request
            choice = active.belief = _Choice(self._make(request.prompt, request.max_tokens))
        return choice

    def _make(self, prompt: Ints, max_tokens: int) -> Bandit:
        return self._policy.make(Setting(self._names, self._rng, self._max_depth, max_tokens, prompt, self._tokenizer))

    def _witness(self, active: ActiveRequest, choice: _Choice) -> None:
        """Tell the bandit of fully known rounds: what each drafter's own draft would have got."""
        for name, judged in active.judgements.items():
            drafter = self._names.index(name)
            for played in choice.waiting:
                if played.rewards[drafter] is None and judged.start <= played.start:
                    played.rewards[drafter] = _reward(judged.hits[played.start - judged.start :], played.depth)
        while choice.waiting and (None not in choice.waiting[0].rewards or len(choice.waiting) > PATIENCE):
            choice.bandit.witness(choice.waiting.popleft().rewards)


def _reward(hits: Sequence[int], depth: int) -> float | None:
    """Return accepted over drafted tokens of a draft that begins with these hits; None if too few are known."""
    for accepted, hit in enumerate(hits[:depth]):
        if hit != Hit.HIT:
            return accepted / depth
    return 1.0 if len(hits) >= depth else None
