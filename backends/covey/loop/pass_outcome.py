"""The outcome of one pass of the target, for each row of a batch."""

from __future__ import annotations

from covey.contracts.types import NO_TOP, Progress, TargetReply, Trees
from covey.requests.active import ActiveRequest, crop
from covey.requests.rounds import Plan


class PassOutcome:
    """Reads a reply row by row, from lists, which takes less time than from arrays."""

    def __init__(self, plan: Plan, trees: Trees, reply: TargetReply) -> None:
        """`trees` are the drafts that were verified."""
        self.status: list[int] = reply.status.tolist()
        self._reply = reply
        self._drafters, self._drafted = plan.drafter, trees.sizes.tolist()
        self._accepted, self._offsets, self._tokens = (
            array.tolist() for array in (reply.accepted, reply.offsets, reply.tokens)
        )
        self._cached, self._reused, self._scored = (
            array.tolist() for array in (reply.num_cached_tokens, reply.reused, reply.scored)
        )

    def give(self, row: int, active: ActiveRequest, now: float) -> Progress | None:
        """Give a request its KV, prompt scores and tokens. Return its progress; None without a token. Tokens after its
        end are dropped."""
        reply, scored = self._reply, self._scored
        active.num_cached_tokens = self._cached[row]
        active.reused += self._reused[row]
        if scored and scored[row] < scored[row + 1]:
            active.score(reply.scores.at(slice(scored[row], scored[row + 1])))
        start, end = self._offsets[row], self._offsets[row + 1]
        if start == end:
            return None
        kept, finish = crop(active, self._tokens[start:end])
        part = slice(start, start + len(kept))
        active.emit(kept, now)
        if self._drafted[row]:
            accepted = min(self._accepted[row], len(kept))
            active.count_draft(self._drafters[row], self._drafted[row], accepted)
        wanted = active.request.sampling.top_logprobs
        top = reply.top.at(part, wanted) if wanted else NO_TOP
        return active.progress(reply.tokens[part], reply.logprobs[part], finish, top=top)
