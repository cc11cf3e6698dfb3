"""Records the last decisions and explains each in one line, with the predicted and observed cost of every depth."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass

from covey.contracts.types import JsonDict
from covey.planner.lessons import Lesson

CAPACITY = 256  # decisions
NEW = 0.05  # weight of a new round in an arm's observed mean


@dataclass(frozen=True, slots=True)
class Decision:
    """One round. `predicted` and `observed` are seconds per token by depth, infinite if unknown. `observed` are moving
    means at this batch size; they include this round if it was `learnt` from."""

    round: int
    rows: int
    lag: int
    depth: int
    why: str
    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    seconds: float
    tokens: int
    drafts: int  # tokens that the target verified, whoever drafted them
    learnt: bool
    drafters: tuple[tuple[str, str, int], ...]  # name, why, rows
    chosen: int  # the depth that the policy chose; `depth` is less if no row could draft so deep
    capped: str  # the reason that limited one of the two, or ""

    def line(self) -> str:
        """Return the decision as one line of text."""
        arms = " ".join(
            f"{'>' if depth == self.depth else ''}{depth}:{_ms(predicted)}/{_ms(observed)}"
            for depth, (predicted, observed) in enumerate(zip(self.predicted, self.observed))
        )
        whose = "".join(f", {name} x{rows} ({why})" for name, why, rows in self.drafters)
        per_token = _ms(self.seconds / self.tokens) if self.tokens else "-"
        note = "" if self.learnt else ", not learnt from"
        why = self.why if self.chosen == self.depth else f"{self.why} {self.chosen}"
        why += self.capped and f", capped by {self.capped}"
        return (
            f"round {self.round}: {self.rows} rows, lag {self.lag}: depth {self.depth} ({why}){whose}, "
            f"{self.drafts} drafts, {self.tokens} tokens at {per_token} ms{note}; ms/token predicted/observed {arms}"
        )

    def plain(self) -> JsonDict:
        """Return the decision as plain data for JSON, with null for unknown values."""
        return asdict(self) | {
            "predicted": [_finite(value) for value in self.predicted],
            "observed": [_finite(value) for value in self.observed],
            "drafters": [{"drafter": name, "why": why, "rows": rows} for name, why, rows in self.drafters],
            "line": self.line(),
        }


class DecisionLog:
    """Owns a ring of the last decisions, and the mean observed cost of each depth."""

    def __init__(self, depths: int) -> None:
        self._depths = depths
        self._ring: deque[Decision] = deque(maxlen=CAPACITY)
        self._observed: dict[int, list[float]] = {}
        self._rounds = 0

    def add(self, lesson: Lesson, drafters: tuple[tuple[str, str, int], ...]) -> None:
        """Record a round that a policy chose, with the drafters in it."""
        choice = lesson.choice
        rows, predicted = choice.situation.rows, choice.reason.predicted
        self._rounds += 1
        observed = self._observed.setdefault(rows, [math.inf] * self._depths)
        if lesson.whole and lesson.tokens:
            mean, new = observed[lesson.depth], lesson.seconds / lesson.tokens
            observed[lesson.depth] = new if mean == math.inf else mean + NEW * (new - mean)
        self._ring.append(
            Decision(
                round=self._rounds,
                rows=rows,
                lag=choice.situation.lag,
                depth=lesson.depth,
                why=choice.reason.word,
                predicted=tuple(predicted) or (math.inf,) * self._depths,
                observed=tuple(observed),
                seconds=lesson.seconds,
                tokens=lesson.tokens,
                drafts=lesson.drafts,
                learnt=lesson.whole,
                drafters=drafters,
                chosen=choice.depth,
                capped=choice.capped,
            )
        )

    def latest(self, count: int = CAPACITY) -> list[Decision]:
        """Return the last decisions, the oldest first. Does not mutate."""
        return list(self._ring)[-count:] if count > 0 else []

    def plain(self, count: int) -> list[JsonDict]:
        """Return the last decisions as plain data for JSON."""
        return [each.plain() for each in self.latest(count)]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < math.inf else "-"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
