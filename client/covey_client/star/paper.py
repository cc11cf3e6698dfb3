"""StarSD's Table 1, depth 8: one drafter for one to six targets. From the fourth on they are of a faster kind.

It does not agree with itself everywhere. By its equation C.7 one target alone is the whole system, yet they have 86.6
and 79.9 tokens/s; N targets of O_i tokens/s are not O (201.8 against 167.6 for two); R_q and N R_p differ by up to 3 %.
T_idle is of one call, not of an iteration as in its equation 9.
"""

from __future__ import annotations

from covey_client.star.model import Star

DEPTH = 8
WARM, COLD, AWAY = 0.00136, 0.00224, 0.0306  # t_s after short and after long gaps; Z


def star() -> Star:
    """Return the paper's timings. Its acceptance follows from tokens per round (79.9 / 20.9, without the bonus). The
    paper does not give the time of a token alone; 25 ms is assumed."""
    return Star(WARM, AWAY, 0.0, 0.805, DEPTH, plain=0.025, cold_step=COLD)
