"""Running totals of drafts by drafter, with vLLM's metrics: drafts, drafted and accepted tokens, the latter by position
as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from covey.requests.rounds import RoundRecord

PREFIX = "covey_spec_decode_num"


@dataclass(slots=True)
class _Brought:
    """The drafts of one drafter; `acceptance[j]` is the number of drafts with j accepted tokens."""

    tokens: int = 0
    acceptance: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


class Drafts:
    """One thread adds each round; any thread may read."""

    def __init__(self) -> None:
        self._by_drafter: dict[str, _Brought] = {}

    def add(self, record: RoundRecord) -> None:
        if not record.trees:
            return
        drafted = np.flatnonzero(record.sizes)
        owners = [record.plan.drafter[row] for row in drafted.tolist()]
        for name in set(owners):
            rows = drafted if owners.count(name) == len(owners) else drafted[np.array(owners) == name]
            brought = self._by_drafter.setdefault(name, _Brought())
            brought.tokens += int(record.sizes[rows].sum())
            counts = np.bincount(record.accepts[rows], minlength=len(brought.acceptance))
            counts[: len(brought.acceptance)] += brought.acceptance
            brought.acceptance = counts

    def totals(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        for name, brought in list(self._by_drafter.items()):
            labels, acceptance = {"drafter": name}, brought.acceptance
            yield f"{PREFIX}_drafts_total", labels, int(acceptance.sum())
            yield f"{PREFIX}_draft_tokens_total", labels, brought.tokens
            reached = np.cumsum(acceptance[::-1])[::-1][1:].tolist()  # a token is accepted only with all before it
            yield f"{PREFIX}_accepted_tokens_total", labels, sum(reached)
            for position, count in enumerate(reached):
                yield f"{PREFIX}_accepted_tokens_per_pos_total", labels | {"position": str(position)}, count
