"""The interface of policies over draft depths: the question before a round, and the outcome after it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from covey.bandits.leaning import Leaning

UNKNOWN = math.inf  # seconds per token of an arm that was never played
Kind = tuple[str, bool]  # a drafter, and whether its rows draw tokens at random: those accept fewer drafts


@dataclass(frozen=True, slots=True)
class Situation:
    """A round about to be played."""

    rows: int  # B, the batch size: all decoding rows, including those whose request sets its depth
    ceiling: int  # the deepest draft that may be chosen; 0 if no drafter is available or the pass has no room
    previous: int = 0  # the deepest draft of the last round that decoded; 0 if the policy chose none
    lag: int = 0  # most tokens of one row that its drafter has not seen (L_max)
    # Rows that leave their depth to the policy, by drafter. If empty, the planner asks no policy; to a policy it means
    # all rows, one drafter.
    shares: tuple[tuple[str, int], ...] = ()
    prefill: int = 0  # prompt tokens in the same pass; such a round is only overheard
    missed: tuple[int, ...] = ()  # unseen tokens of all its rows, by drafter; empty: `lag` for each row
    drafts: tuple[int, ...] = ()  # draft tokens of a pass, for each depth; empty: one for each step and drafting row
    served: bool = True  # whether any of its rows' drafters is available
    width: int = 1  # lanes of a row's tree
    sampled: tuple[int, ...] = ()  # by drafter, its rows with a temperature above 0; empty: none
    joining: int = 0  # requests that will decode when their prompts are read
    # The shifts of its rows' log odds of acceptance (`leaning`), for each of `kinds`; empty: none.
    shifts: tuple[tuple[float, ...], ...] = ()

    @property
    def why_plain(self) -> str:
        """Return why only depth 0 may be chosen."""
        return "no room" if self.served else "no drafter"

    @property
    def drafting(self) -> int:
        """Return how many rows draft if the policy chooses a depth above 0."""
        return sum(rows for _, rows in self.shares) if self.shares else self.rows

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the rows that draft, by drafter: `shares`, else all rows under ""."""
        return self.shares or (("", max(1, self.rows)),)

    def kinds(self) -> list[tuple[Kind, int]]:
        """Return how many rows draft of each kind that there is."""
        found = []
        for place, (name, rows) in enumerate(self.parts):
            sampled = self.sampled[place] if self.sampled else 0
            found += [((name, random), count) for random, count in ((False, rows - sampled), (True, sampled)) if count]
        return found

    def lags(self) -> Iterator[tuple[str, int, int]]:
        """Yield each drafter, its rows, and their mean lag. Catch-up reads rows packed, so its time follows the mean
        lag, not the longest."""
        for place, (name, rows) in enumerate(self.parts):
            yield name, rows, -(-self.missed[place] // rows) if self.missed else self.lag

    def asked(self, depth: int) -> int:
        """Return the draft tokens that a pass of that depth asks for."""
        return self.drafts[depth] if self.drafts else depth * self.drafting


@dataclass(frozen=True, slots=True)
class Trials:
    """For each draft position from the first: rows whose draft was tried there, and rows where it was accepted. If a
    drafter answered, a requested position counts as tried even if it was left empty or its draft was not selected."""

    tried: Sequence[int]
    accepted: Sequence[int]
    asked: int = 0  # draft tokens asked for, and verified; 0 and 0: all were verified
    verified: int = 0
    rows: Sequence[tuple[Leaning, int, int]] = ()  # the same for each row: drafts tried, and accepted


@dataclass(frozen=True, slots=True)
class DraftCall:
    """A drafter's steps and seconds in one round."""

    steps: Sequence[int]  # rows that drafted one token or more, two or more, and so on
    seconds: float  # inside the drafter, without catch-up


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost and the yield of a round."""

    seconds: float  # the whole round, but for learning and moves of memory
    tokens: int  # emitted, by all rows
    draft_seconds: float = 0.0  # catch-up included
    verify_seconds: float = 0.0
    catch_up_seconds: float = 0.0  # time that drafters took to read tokens they had missed
    verified: int = 0  # tokens in the pass, without prompts: one per row and its drafts
    trials: Mapping[Kind, Trials] = field(default_factory=dict)
    # By drafter. None: all rows that draft in the situation drafted to the played depth.
    calls: Mapping[str, DraftCall] | None = None

    @property
    def latency(self) -> float:
        """Return the seconds per token: 1/g."""
        return self.seconds / max(1, self.tokens)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the last choice was made: a word, and each depth's expected seconds per token."""

    word: str
    predicted: Sequence[float] = ()


class LengthPolicy(Protocol):
    """Chooses one draft depth for the batch. Knows no requests, no engine and no clock."""

    reason: Reason
    verified: int | None  # drafted tokens per row to verify, on average; None: all
    width: int | None  # lanes of the trees of its last choice; None: the most allowed
    listens: bool  # whether it learns from rounds that it was not asked about
    teaches: bool  # whether it owns the planner's expectations; then only it teaches them
    patient: bool  # whether it may learn from a round after the next choice, while drafters work, to save time

    def choose(self, situation: Situation) -> int:
        """Return a depth in 0..ceiling. May draw random numbers and remember what it chose."""
        ...

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn the outcome of `depth`, which is less than the choice if no row had room for that. Not called for
        rounds that do not show the cost of the depth."""
        ...

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn from the parts of a round that does not show the cost of its depth. For example, prompts were in the
        pass, or requests set their own depth. `depth` is the deepest draft of any row."""
        ...


class Forgetful:
    """The defaults of `LengthPolicy`: it verifies all drafts and learns only from whole rounds."""

    reason = Reason("")
    verified: int | None = None
    width: int | None = None
    listens = False
    teaches = False
    patient = False

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing."""
