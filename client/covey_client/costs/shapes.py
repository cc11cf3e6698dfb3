"""The shapes that are measured: batches of decoding rows, prompts, and rows whose drafter has much to catch up on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey_client.reports import Facts

PROMPT = 24  # tokens of a row that is there to decode
ROWS, QUICK_ROWS = (1, 2, 4, 8, 16, 32), (1, 8)
PREFILLS, QUICK_PREFILLS = (16, 32, 64, 128, 256, 512, 1024), (16, 128)
LAGS, QUICK_LAGS = (16, 64, 256, 1024), (64, 256)
BATCHES, QUICK_BATCHES = (1, 4, 16), (1, 4)


@dataclass(frozen=True)
class Batch:
    """A batch of so many decoding rows, each with a draft of that depth."""

    rows: int
    depth: int
    drafter: str  # "" at depth 0


@dataclass(frozen=True)
class Prefill:
    """One prompt, read in one pass."""

    tokens: int


@dataclass(frozen=True)
class Switch:
    """A switch: so many rows begin to draft at once, of each of which the drafter has not seen `lag` tokens."""

    lag: int
    rows: int
    drafter: str


Shape = Batch | Prefill | Switch


def shapes(facts: Facts, drafters: Sequence[str], *, quick: bool) -> list[Shape]:
    """All that fit the server: a pass holds `token_budget` tokens, the pool and a request have their ends too."""
    pool = facts.total_blocks * facts.block_size
    found: list[Shape] = []
    for rows in QUICK_ROWS if quick else ROWS:
        if rows <= min(facts.max_running, facts.token_budget) and rows * 16 * PROMPT <= pool:
            found.append(Batch(rows, 0, ""))
            deepest = min(facts.max_depth, facts.token_budget // rows - 1)
            found += [Batch(rows, depth, drafter) for drafter in drafters for depth in _depths(deepest, quick)]
    tokens = QUICK_PREFILLS if quick else PREFILLS
    found += [Prefill(size) for size in tokens if size <= min(facts.token_budget, facts.max_positions // 2)]
    for lag in QUICK_LAGS if quick else LAGS:
        for rows in QUICK_BATCHES if quick else BATCHES:
            whole = rows * (lag + growth(facts, lag, rows)) + blocker(facts)
            fits = lag + growth(facts, lag, rows) < facts.max_positions and 2 * whole <= pool
            if fits and rows <= facts.token_budget // 2 and rows + 2 <= facts.max_running:
                found += [Switch(lag, rows, drafter) for drafter in drafters]
    return found


def blocker(facts: Facts) -> int:
    """Tokens of a prompt that fills passes, so that there is no room to draft: two passes' worth."""
    return min(2 * facts.token_budget, facts.max_positions - 2)


def growth(facts: Facts, lag: int, rows: int) -> int:
    """Tokens that a row may emit before all rows have been read, and while drafting begins."""
    return -(-rows * lag // max(1, facts.token_budget - rows)) + 8 * (facts.max_depth + 1)


def _depths(deepest: int, quick: bool) -> list[int]:
    wanted = (1, deepest) if quick else (1, 2, 4, 6, 8, 12, 16, deepest)
    return sorted({depth for depth in wanted if 1 <= depth <= deepest})
