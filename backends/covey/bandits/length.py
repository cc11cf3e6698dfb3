"""The interface of policies over draft depths: what they are asked, and what they are told afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

UNKNOWN = math.inf  # seconds per token of an arm that was never played


@dataclass(frozen=True, slots=True)
class Situation:
    """A round about to be played."""

    rows: int  # B, the batch size: decoding rows, those with a depth of their own included
    ceiling: int  # the deepest draft that may be chosen; 0 while no drafter is to be had, or no room in the pass
    previous: int = 0  # gamma of the round before, whatever its batch size
    lag: int = 0  # L_max: most tokens of one row that its drafter has not seen
    # Rows that leave their depth to the policy, by drafter. Empty: all rows, of one drafter; the planner never asks so.
    shares: tuple[tuple[str, int], ...] = ()
    prefill: int = 0  # prompt tokens in the same pass; such a round is only overheard
    missed: tuple[int, ...] = ()  # tokens that each of them has not seen of its rows; empty: of each row, `lag`
    drafts: tuple[int, ...] = ()  # draft tokens of a pass, for each depth; empty: one a step and drafting row
    served: bool = True  # whether any of its rows' drafters can be asked
    width: int = 1  # lanes of a row's tree
    # Tokens that all rows emit, for each depth, and their relative deviation, where that is believed of these very
    # requests; empty: nobody knows more than what drafters usually bring.
    tokens: tuple[float, ...] = ()
    doubt: tuple[float, ...] = ()

    @property
    def why_plain(self) -> str:
        """Return why a round is plain where no depth but 0 may be chosen."""
        return "no room" if self.served else "no drafter"

    @property
    def drafting(self) -> int:
        """Return how many rows draft where the policy chooses to."""
        return sum(rows for _, rows in self.shares) if self.shares else self.rows

    def lags(self) -> Iterator[tuple[str, int, int]]:
        """Yield each drafter, its rows, and their mean lag. Catching up reads them packed, so that this and not the
        longest says what it takes."""
        for place, (name, rows) in enumerate(self.shares or (("", self.rows),)):
            yield name, rows, -(-self.missed[place] // rows) if self.missed else self.lag

    def asked(self, depth: int) -> int:
        """Draft tokens that a pass of that depth is to have."""
        return self.drafts[depth] if self.drafts else depth * self.drafting


@dataclass(frozen=True, slots=True)
class Trials:
    """Per draft position, from the first: rows whose draft was looked at there, and rows where it was accepted. Where
    a drafter answered, a position that it was asked for and left empty counts as looked at: there it had nothing. So
    does one whose draft was not selected."""

    offered: Sequence[int]
    accepted: Sequence[int]
    asked: int = 0  # draft tokens that it was asked for, and how many were verified; 0, 0: all that were asked for
    verified: int = 0


@dataclass(frozen=True, slots=True)
class DraftCall:
    """A drafter's steps and seconds in one round."""

    steps: Sequence[int]  # rows that drafted one token or more, two or more, and so on
    seconds: float  # inside the drafter, without what it read first


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost and the yield of a round."""

    seconds: float  # the whole round
    tokens: int  # emitted, by all rows
    draft_seconds: float = 0.0  # catch-up included
    verify_seconds: float = 0.0
    catch_up_seconds: float = 0.0  # what the drafters took to see tokens they had missed
    verified: int = 0  # tokens in the pass, prompts apart: one per row and its drafts
    trials: Mapping[str, Trials] = field(default_factory=dict)  # each drafter's
    # By drafter that was waited for. None: all rows that draft in the situation did, as deep as was played.
    calls: Mapping[str, DraftCall] | None = None

    @property
    def latency(self) -> float:
        """Return the seconds per token: 1/g."""
        return self.seconds / max(1, self.tokens)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the last choice was made: a word, and what each depth was expected to cost in seconds per token."""

    word: str
    predicted: Sequence[float] = ()


class LengthPolicy(Protocol):
    """Chooses one draft depth for the batch. Knows no requests, no engine and no clock."""

    reason: Reason
    verified: int | None  # drafted tokens a row that are worth verifying, on average; None: all
    width: int | None  # lanes of the trees of its last choice; None: as many as are allowed
    patient: bool  # may be told of a round when the next was already chosen, while drafters work: learning takes time

    def choose(self, situation: Situation) -> int:
        """Return a depth in 0..ceiling. May draw random numbers and remember what it chose."""
        ...

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn the outcome of `depth` in that situation: less than was chosen where no row had room for more. Not
        called for rounds that do not show what the depth costs."""
        ...

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn, as `update` does, from a round that does not show what the depth costs, as prompts were in the pass or
        rows drafted as deep as their requests ask: its parts may tell something too. `depth`: the deepest draft of any
        row."""
        ...

    def prepare(self, situation: Situation) -> None:
        """Prepare for a question like this one, while there is time. Does not change any answer."""
        ...


class Forgetful:
    """The parts of `LengthPolicy` for one that verifies all its drafts and forgets what it overhears."""

    reason = Reason("")
    verified: int | None = None
    width: int | None = None
    patient = False

    def prepare(self, situation: Situation) -> None:
        """Do nothing."""

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing: the policy knows rounds as a whole alone."""
