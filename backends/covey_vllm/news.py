"""Reports a proposer's rounds, decisions and drafters as JSON, for a program that steps vLLM's engine itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields

from covey.contracts.types import JsonDict
from covey.planner.decisions import DecisionLog
from covey.requests import rounds
from covey.requests.roster import Roster
from covey.requests.rounds import Round, RoundRecord

MOST_ROUNDS = 1024  # kept until they are taken
ROWS = ("plan", "sizes", "accepts", "read")  # fields of a record that are not single numbers
NUMBERS = tuple(each.name for each in fields(RoundRecord) if each.name not in ROWS)
Figures = Callable[[], Iterable[tuple[str, dict[str, str], float]]]


class News:
    """Owns the events since they were last taken."""

    def __init__(self, decisions: DecisionLog, roster: Roster, totals: Figures) -> None:
        """`totals` yields counters: metric, labels, value so far."""
        self._decisions, self._roster, self._totals = decisions, roster, totals
        self._rounds: deque[JsonDict] = deque(maxlen=MOST_ROUNDS)
        self._told = 0  # number of the last decision that was taken

    def round(self, done: Round) -> None:
        self._rounds.append(_plain(rounds.record_of(done)))

    def take(self) -> JsonDict:
        """Return rounds and decisions since the last call, with the current figures and states of drafters."""
        told, self._rounds = list(self._rounds), deque(maxlen=MOST_ROUNDS)
        decisions = [each for each in self._decisions.latest() if each.round > self._told]
        self._told = decisions[-1].round if decisions else self._told
        return {
            "rounds": told,
            "decisions": [each.plain() for each in decisions],
            "totals": list(self._totals()),
            "gauges": list(self._roster.gauges()),
            "states": self._roster.states(),
        }


def _plain(record: RoundRecord) -> JsonDict:
    return {name: getattr(record, name) for name in NUMBERS} | {
        "drafter": record.plan.drafter,
        "depth": record.plan.depth.tolist(),
    }
