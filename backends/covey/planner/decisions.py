"""Records the last choices and explains each in one line: the expected cost of every depth, and the real one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from covey.contracts.types import JsonDict

MEMORY = 0.05  # weight of a new round in an arm's observed mean


@dataclass(frozen=True, slots=True)
class Decision:
    """One round. `predicted` and `observed` are seconds per token by depth, infinite where nothing is known; `observed`
    are moving means at this batch size, this round included when it was `learnt` from."""

    round: int
    rows: int
    lag: int
    depth: int
    why: str
    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    seconds: float
    tokens: int
    learnt: bool
    drafters: tuple[tuple[str, str, int], ...] = ()  # name, why, rows
    chosen: int = 0  # the depth that `why` is about; `depth` is less where no row could draft as deep
    capped: str = ""  # by what either is less than it could be

    def line(self) -> str:
        """Return the decision in one line, for people."""
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
            f"{self.tokens} tokens at {per_token} ms{note}; ms/token predicted/observed {arms}"
        )

    def plain(self) -> JsonDict:
        """Return the decision as plain data for JSON, with null for what is not known."""
        return {
            "round": self.round,
            "rows": self.rows,
            "lag": self.lag,
            "depth": self.depth,
            "why": self.why,
            "chosen": self.chosen,
            "capped": self.capped,
            "predicted": [_finite(value) for value in self.predicted],
            "observed": [_finite(value) for value in self.observed],
            "seconds": self.seconds,
            "tokens": self.tokens,
            "learnt": self.learnt,
            "drafters": [{"drafter": name, "why": why, "rows": rows} for name, why, rows in self.drafters],
            "line": self.line(),
        }


class DecisionLog:
    """Owns a ring of the last decisions, and each arm's observed mean."""

    def __init__(self, depths: int, capacity: int = 256) -> None:
        self._depths = depths
        self._ring: deque[Decision] = deque(maxlen=capacity)
        self._observed: dict[int, list[float]] = {}
        self._rounds = 0

    def add(
        self,
        *,
        rows: int,
        lag: int,
        depth: int,
        why: str,
        predicted: Sequence[float],
        seconds: float,
        tokens: int,
        learnt: bool,
        drafters: tuple[tuple[str, str, int], ...] = (),
        chosen: int,
        capped: str = "",
    ) -> None:
        """Record a round; `learnt` says whether it tells what the depth costs at this batch size."""
        self._rounds += 1
        observed = self._observed.get(rows)
        if observed is None:
            observed = self._observed[rows] = [math.inf] * self._depths
        if learnt and tokens:
            mean, new = observed[depth], seconds / tokens
            observed[depth] = new if mean == math.inf else mean + MEMORY * (new - mean)
        expected = tuple(predicted) or (math.inf,) * self._depths
        self._ring.append(
            Decision(
                self._rounds,
                rows,
                lag,
                depth,
                why,
                expected,
                tuple(observed),
                seconds,
                tokens,
                learnt,
                drafters,
                chosen,
                capped,
            )
        )

    def latest(self, count: int = 256) -> list[Decision]:
        """Return the last decisions, the oldest first. Does not mutate."""
        return list(self._ring)[-count:] if count > 0 else []

    def plain(self, count: int) -> list[JsonDict]:
        """Return the last decisions as plain data for JSON."""
        return [each.plain() for each in self.latest(count)]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < math.inf else "-"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
