"""One request and its progress: its output, the tokens that drafters have seen, and its next token's deadline.

Knows no other request and no clock: callers pass the time, on the same clock as the request's arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from covey.bandits.leaning import Leaning
from covey.contracts.types import (
    NO_FLOATS,
    NO_INTS,
    NO_SCORES,
    NO_STATES,
    NO_TOP,
    Finish,
    Floats,
    Ints,
    Offer,
    Open,
    Progress,
    Request,
    Rule,
    Scores,
    Top,
    Words,
)


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request and its progress. Only the engine's thread changes it, mostly through the scheduler."""

    request: Request
    output: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0  # tokens with KV on the target
    opened: bool = False  # the target knows the tag
    open_sent: bool = False  # an opening was sent: the target may hold the tag, even if the pass failed
    reused: int = 0
    scores: list[Scores] = field(default_factory=list)  # of its prompt, not yet sent to its listener
    scored: int = 0  # tokens of its prompt, the first not counted
    rounds: int = 0  # verify rounds
    drafted: int = 0
    accepted: int = 0
    acceptance: list[int] = field(default_factory=list)  # [j]: drafts of which j tokens were accepted
    by_drafter: dict[str, tuple[int, int]] = field(default_factory=dict)  # drafted, accepted
    seen: dict[str, int] = field(default_factory=dict)  # drafter -> tokens of this request sent to it
    states: Words = field(default_factory=lambda: NO_STATES)  # the target's, of positions from `first_state` on
    first_state: int = 0
    leaning: Leaning = field(default_factory=Leaning)  # of its drafts
    bandit: Any = None  # private to the planner: chooses its drafter
    text: Any = None  # private to `covey.loop.lookups`: its index of this text
    offer: Offer | None = None  # the last drafts from its own text
    own_drafts: Offer | None = None  # the last drafts of the target's own head
    admitted: float | None = None  # when it first ran
    first_token: float | None = None  # when it came
    deaths: int = 0  # of the target in passes over it, since its last token
    due: float = 0.0  # the scheduler's key when it last ordered it

    @property
    def key(self) -> int:
        return self.request.key

    @property
    def num_tokens(self) -> int:
        """Return the number of its tokens so far, prompt included."""
        return len(self.request.prompt) + len(self.output)

    @property
    def room(self) -> int:
        """Return how many tokens it may still emit."""
        return self.request.max_tokens - len(self.output)

    @property
    def coupled(self) -> bool:
        """Return whether its drafts are verified by the coupled rule: only for these the target's own head drafts."""
        return self.request.sampling.rule is Rule.COUPLED

    @property
    def seen_by_own_head(self) -> int:
        """Return how many of its tokens the target's own head has read."""
        return 0 if self.own_drafts is None else self.own_drafts.num_tokens

    @property
    def next_drafts(self) -> list[int]:
        """Return the drafts of the target's own head for its next token, if there are any."""
        own = self.own_drafts
        return [] if own is None or own.num_tokens != self.num_tokens else own.tokens

    def add_states(self, first: int, states: Words, wanted: int) -> None:
        """Add the target's states of the positions from `first` on. Drop those before `wanted`."""
        if len(self.states) and first == self.first_state + len(self.states):
            first, states = self.first_state, np.concatenate([self.states, states])
        dropped = min(max(0, wanted - first), len(states))
        self.first_state, self.states = first + dropped, states[dropped:]

    def next_state(self, wanted: int) -> int:
        """Return the first position, from `wanted` on, whose state is missing."""
        end = self.first_state + len(self.states)
        return end if self.first_state <= wanted < end else wanted

    @property
    def decoding(self) -> bool:
        """Return whether only the request's last token lacks KV, so that its next pass yields a new token."""
        return self.opened and self.num_tokens - self.num_cached_tokens == 1

    @property
    def scoring(self) -> bool:
        """Return whether log-probabilities of the request's prompt are still missing."""
        return self.request.sampling.prompt_logprobs and self.scored < self.request.num_prompt - 1

    def score(self, scores: Scores) -> None:
        """Add the prompt's log-probabilities up to the end of its KV. After a replay, skip the known ones."""
        behind = min(self.num_cached_tokens, self.request.num_prompt - 1)
        new = behind - self.scored
        if new > 0:
            self.scores.append(scores.at(slice(len(scores.logprobs) - new, None), self.request.sampling.top_logprobs))
            self.scored = behind

    @property
    def deadline(self) -> float:
        """Return the deadline of its next token under the objective; infinite without an objective."""
        objective, request = self.request.objective, self.request
        if self.first_token is None:
            return request.arrival + objective.ttft
        return self.first_token + objective.tpot * len(self.output)

    def hopeless(self, now: float, fastest: float) -> bool:
        """Return whether the request's objective is missed, or will be missed even if each further token takes only
        `fastest` seconds."""
        objective, request = self.request.objective, self.request
        if self.first_token is None:
            return now + fastest > self.deadline
        if self.first_token > request.arrival + objective.ttft:
            return True
        return now + self.room * fastest > self.first_token + objective.tpot * (request.max_tokens - 1)

    def emit(self, tokens: list[int], now: float) -> None:
        """Add the tokens of a round."""
        if self.first_token is None and tokens:
            self.first_token = now
        self.deaths = 0
        self.output += tokens
        self.rounds += 1

    def count_draft(self, drafter: str, drafted: int, accepted: int) -> None:
        """Count one verified draft."""
        before = self.by_drafter.get(drafter, (0, 0))
        self.by_drafter[drafter] = before[0] + drafted, before[1] + accepted
        self.drafted += drafted
        self.accepted += accepted
        self.acceptance += [0] * (accepted + 1 - len(self.acceptance))
        self.acceptance[accepted] += 1

    def tokens(self, start: int = 0) -> Ints:
        """Return the request's tokens from `start` on."""
        prompt = self.request.prompt
        if start >= len(prompt):
            return np.asarray(self.output[start - len(prompt) :], np.int32)
        return np.concatenate([prompt[start:], np.asarray(self.output, np.int32)])

    def progress(
        self,
        tokens: Ints,
        logprobs: Floats,
        finish: Finish | None = None,
        error: Exception | None = None,
        top: Top = NO_TOP,
    ) -> Progress:
        """Return the request's progress with new tokens, for its listener. Scores in it are dropped here."""
        return Progress(
            self.key,
            tokens,
            logprobs,
            finish,
            error,
            drafted=self.drafted,
            accepted=self.accepted,
            reused=self.reused,
            rounds=self.rounds,
            acceptance=tuple(self.acceptance),
            drafters=tuple((name, *counts) for name, counts in self.by_drafter.items()),
            top=top,
            scores=self._taken_scores() if len(tokens) or finish is Finish.LENGTH else NO_SCORES,
            queued=None if self.admitted is None else self.admitted - self.request.arrival,
        )

    def _taken_scores(self) -> Scores:
        """Return the log-probabilities that its listener has not got yet, and drop them."""
        scores, self.scores = self.scores, []
        return Scores.joined(scores) if scores else NO_SCORES

    def last_word(self, finish: Finish, error: Exception | None = None) -> Progress:
        """Return the last progress of a request that ends without new tokens."""
        return self.progress(NO_INTS, NO_FLOATS, finish, error)

    def opening(self) -> Open:
        """Return the message that opens its tag on a target or drafter."""
        request, sampling = self.request, self.request.sampling
        if sampling.prompt_logprobs and not self.scoring:
            sampling = replace(sampling, prompt_logprobs=False)  # its KV may be reused
        return Open(self.key, self.tokens(), request.num_prompt, sampling, request.tenant, self.rounds, request.name)


def crop(active: ActiveRequest, tokens: list[int]) -> tuple[list[int], Finish | None]:
    """Return the newly committed tokens that a request keeps, and why it ends with them, or None. An end token is the
    last one kept; tokens past `max_tokens` are dropped."""
    room, ends = active.room, active.request.sampling.end_ids
    kept = tokens[:room]
    if ends:
        for index, token in enumerate(kept):
            if token in ends:
                return kept[: index + 1], Finish.EOS
    return kept, Finish.LENGTH if len(kept) == room else None
