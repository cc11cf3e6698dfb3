"""What a run of faults says: recovery by kind, what became of the answers, and what must not have happened."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from loadtest.faults.injection import LOST_SECONDS, Fault
from loadtest.faults.streams import Answer


def of_answers(answers: Sequence[Answer]) -> list[str]:
    """An answer that ended in an error said so: that is counted, and no problem of exactness."""
    found = [f"{count} answers {what}" for what, count in Counter(a.outcome for a in answers).items() if what in BAD]
    return found if any(a.outcome == "right" for a in answers) else [*found, "no answer was right"]


BAD = ("wrong", "late")


def of_faults(faults: Sequence[Fault]) -> list[str]:
    return [f"{f.kind}: not back after {LOST_SECONDS:.0f} s" for f in faults if f.seconds is None]


def found(
    faults: Sequence[Fault], answers: Sequence[Answer], refused: int, seconds: float, grown: int, problems: list[str]
) -> dict[str, Any]:
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind] += [] if fault.seconds is None else [fault.seconds]
    recovery = {
        kind: {"faults": len(times), "median_s": statistics.median(times), "worst_s": max(times)}
        for kind, times in sorted(by_kind.items())
        if times
    }
    return {
        "faults": len(faults),
        "seconds": seconds,
        "recovery": recovery,
        "answers": Counter(answer.outcome for answer in answers),
        "errors": Counter(answer.error[:200] for answer in answers if answer.error),
        "not_right": [asdict(answer) for answer in answers if answer.outcome != "right"],
        "order": [{"kind": fault.kind, "at_s": fault.at - faults[0].at, "back_s": fault.seconds} for fault in faults],
        "refused_and_asked_again": refused,
        "longest_answer_s": max((answer.seconds for answer in answers), default=0.0),
        "shared_memory_grown_bytes": grown,
        "problems": problems,
    }


def table(found: dict[str, Any]) -> Table:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found["answers"].items())
    made = Table(title=f"{found['faults']} faults in {found['seconds']:.0f} s; answers: {outcomes}")
    for column in ("fault", "times", "median s", "worst s"):
        made.add_column(column, justify="left" if column == "fault" else "right")
    for kind, row in found["recovery"].items():
        made.add_row(kind, str(row["faults"]), f"{row['median_s']:.1f}", f"{row['worst_s']:.1f}")
    return made
