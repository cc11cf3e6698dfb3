"""Implements drafter bandits as published: one for each request, which knows only its request's rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.bandits.drafters.choice import Bandit
from covey.bandits.drafters.policies import Policy, Setting
from covey.planner.drafters.policy import ASKED, Assignment, is_free
from covey.planner.lessons import tried
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Round
from covey.requests.scheduler import Batch


class PerRequest:
    """Implements `DrafterPolicy`. As published, bandits learn the last round before they choose; a round late, they
    would play each arm twice."""

    def __init__(self, policy: Policy, names: Sequence[str], max_depth: int, *, seed: int = 0) -> None:
        """Raises SettingError if a parameter of the policy is out of range."""
        self._policy = policy
        self._names = list(names)
        self._max_depth = max_depth
        self._rng = np.random.default_rng(seed)
        self.divergence = policy.reward == "divergence"
        self._make(1)

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        serving = [index for index, name in enumerate(self._names) if roster.serves(name)]
        drafters, why = [], []
        for active in batch.rows[: batch.decoding]:
            free = is_free(active)
            if not free or not serving:
                drafters.append(active.request.drafter or self._names[0])
                why.append("first" if free else ASKED)
                continue
            holding = [index for index in serving if active.num_tokens < roster.positions(self._names[index])]
            drafters.append(self._names[self._bandit(active).choose(holding or serving)])
            why.append(self._policy.name)
        return Assignment(tuple(drafters), tuple(why))

    def learn(self, done: Round) -> None:
        if not done.drafted.answered.any():
            return
        reply = done.reply
        depths, accepted, emitted = tried(done).tolist(), reply.accepted.tolist(), np.diff(reply.offsets).tolist()
        proposed = done.drafted.trees.sizes.tolist()
        for row, active in enumerate(done.batch.rows[: done.batch.decoding]):
            if depths[row] <= 0 or active.request.drafter:
                continue
            reward = min(1.0, accepted[row] / depths[row])
            if self.divergence and proposed[row]:  # an empty answer has reward 0: the round was wasted on this arm
                reward = float(reply.divergence[row]) if len(reply.divergence) else -1.0
                if reward < 0.0:
                    continue  # the target did not compute it
            self._bandit(active).update(self._names.index(done.plan.drafter[row]), reward, emitted[row])

    def _bandit(self, active: ActiveRequest) -> Bandit:
        bandit: Bandit | None = active.bandit
        if bandit is None:
            bandit = active.bandit = self._make(active.request.max_tokens)
        return bandit

    def _make(self, max_tokens: int) -> Bandit:
        return self._policy.make(Setting(self._names, self._rng, self._max_depth, max_tokens))
