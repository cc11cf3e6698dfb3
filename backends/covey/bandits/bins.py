"""Blocks and bins of rounds, as in Nightjar and ADA-BINGREEDY (Nightjar v2, Algorithm 1; v1 is the same)."""

from __future__ import annotations


class Bins:
    """j, H, b and tau of Algorithm 1, and the arm locked for the bin.

    tau counts recorded rounds. A round that teaches nothing (prefill in it, no drafter) does not advance tau or change
    the bin's arm. Without such rounds this is exactly Algorithm 1.
    """

    __slots__ = ("arm", "bin", "block", "counter", "horizon")

    def __init__(self) -> None:
        self.block = 1  # j
        self.horizon = 1  # H
        self.bin = 1  # b
        self.counter = 1  # tau
        self.arm: int | None = None  # None at a bin's start (line 6)

    def advance(self) -> None:
        """Count one round: lines 19 to 25. Comparing squares avoids the rounded square root of H = 2^(j-1)."""
        self.counter += 1
        if self.counter * self.counter <= self.horizon:
            return
        self.bin += 1
        self.counter = 1
        self.arm = None
        if self.bin * self.bin <= self.horizon:
            return
        self.block += 1
        self.horizon = 1 << (self.block - 1)
        self.bin = 1
