"""StarSD's Table 1, depth 8: one drafter for one to six targets. From the fourth on they are of a faster kind.

It does not agree with itself everywhere. By its equation C.7 one target alone is the whole system, yet they have 86.6
and 79.9 tokens/s; N targets of O_i tokens/s are not O (201.8 against 167.6 for two); R_q and N R_p differ by up to 3 %.
T_idle is of one call, not of an iteration as in its equation 9.
"""

from __future__ import annotations

from dataclasses import dataclass

from covey_client.star.model import Star

DEPTH = 8
WARM, COLD, AWAY = 0.00136, 0.00224, 0.0306  # t_s after short and after long gaps; Z


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """A column of the paper's table, in its units: tokens/s, ms, rounds/s, per cent."""

    targets: int
    whole: float
    each: float
    step: float
    wait: float
    idle: float
    calls: float
    rounds: float
    load: float


TABLE = (
    PaperColumn(1, 79.9, 86.6, 2.24, 0.01, 30.6, 20.90, 20.90, 33.3),
    PaperColumn(2, 167.6, 100.9, 1.36, 0.50, 9.8, 49.25, 24.07, 50.3),
    PaperColumn(3, 246.3, 98.3, 1.36, 0.60, 3.4, 72.26, 23.38, 75.4),
    PaperColumn(4, 266.6, 80.94, 1.42, 3.90, 0.6, 81.54, 19.73, 91.4),
    PaperColumn(5, 285.5, 69.49, 1.46, 13.0, 0.0, 85.52, 16.64, 99.5),
    PaperColumn(6, 288.7, 57.78, 1.46, 22.3, 0.0, 85.84, 14.10, 99.6),
)


def star() -> Star:
    """Return the paper's timings. Its acceptance follows from tokens per round (79.9 / 20.9, without the bonus); what a
    token takes alone it does not say, and 25 ms is assumed."""
    return Star(WARM, AWAY, 0.0, 0.805, DEPTH, plain=0.025, cold_step=COLD)
