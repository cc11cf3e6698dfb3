"""Finds a run's problems, and the recovery time by kind of fault."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from covey.contracts.types import JsonDict
from loadtest.attack.injection import LOST_SECONDS, Fault
from loadtest.attack.streams import Outcome

BAD = ("wrong", "late")


def of_answers(answers: Sequence[Outcome], *, errors: bool = True) -> list[str]:
    """Return the problems of all answers together. If `errors` are allowed, an answer that ended with one is counted
    elsewhere, and is no problem of exactness."""
    bad = BAD if errors else (*BAD, "error")
    found = [f"{count} answers {what}" for what, count in Counter(a.outcome for a in answers).items() if what in bad]
    return found if any(a.outcome == "right" for a in answers) else [*found, "no answer was right"]


def of_faults(faults: Sequence[Fault]) -> list[str]:
    return [f"{f.kind}: not back after {LOST_SECONDS:.0f} s" for f in faults if f.seconds is None]


def of_processes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the verdict on processes, by name."""
    return [] if before == after else [f"processes: {', '.join(before)} before, {', '.join(after)} after"]


def said(answers: Sequence[Outcome], refused: int) -> JsonDict:
    """Return the outcome of all answers as JSON."""
    return {
        "answers": Counter(answer.outcome for answer in answers),
        "errors": Counter(answer.error[:200] for answer in answers if answer.error),
        "not_right": [asdict(answer) for answer in answers if answer.outcome != "right"],
        "refused_and_asked_again": refused,
        "longest_answer_s": max((answer.seconds for answer in answers), default=0.0),
    }


def recovery(faults: Sequence[Fault]) -> JsonDict:
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind] += [] if fault.seconds is None else [fault.seconds]
    return {
        "faults": len(faults),
        "recovery": {
            kind: {"faults": len(times), "median_s": statistics.median(times), "worst_s": max(times)}
            for kind, times in sorted(by_kind.items())
            if times
        },
        "order": [{"kind": fault.kind, "at_s": fault.at - faults[0].at, "back_s": fault.seconds} for fault in faults],
    }


def table(found: JsonDict) -> Table:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found["answers"].items())
    made = Table(title=f"{found['faults']} faults; answers: {outcomes}")
    for column in ("fault", "times", "median s", "worst s"):
        made.add_column(column, justify="left" if column == "fault" else "right")
    for kind, row in found["recovery"].items():
        made.add_row(kind, str(row["faults"]), f"{row['median_s']:.1f}", f"{row['worst_s']:.1f}")
    return made
