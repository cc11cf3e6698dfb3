"""Measures at every length whether a token's draw has the same bits in any batch.

The target reads rows of random tokens alone, on the runtime that serves it, then in other chunks and in changing
batches. At every position the bench compares the ids drawn at temperature 0 and 1 and the bits of their
log-probabilities. In mode `invariant` none may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch
from rich.console import Console

from covey.contracts import profile
from covey.contracts.profile import TargetSettings
from covey.contracts.types import JsonDict
from covey.runtimes.resizing import AnyModel
from covey.target.runner import open_target, typed
from loadtest.bench import report
from loadtest.bench.exactness_rows import TEMPERATURES, Counts, Rows, Seen, Step, in_chunks, in_company
from loadtest.bench.session import Session

ROW_POSITIONS = 2048  # of a row, at most
CHUNK = 256  # of a row that is read alone, for comparison
CHUNKS = (249, 100, 7)  # ... and of one read alone once more
POSITIONS, QUICK_POSITIONS = 120_000, 4_000
STEPS = 10  # of the comparisons, for the bar
POOL_ROWS = 6  # of a comparison


@dataclass
class ExactnessFound:
    """Holds the results."""

    mode: str = ""
    counts: Counts = field(default_factory=Counts)

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        return {"mode": self.mode, **asdict(self.counts)}


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted, measured = session.wanted, ExactnessFound()
    session.summarise = measured.summary
    session.notes["temperatures"] = list(TEMPERATURES)
    settings = profile.load(wanted.profile)
    positions, counts = wanted.sized(POSITIONS, QUICK_POSITIONS), measured.counts
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.target.threads or threads)
    try:
        with session.status("loading the target"):
            model = opened(wanted.target_folder(settings), POOL_ROWS, settings.target)
        measured.mode, rng = model.numerics, np.random.default_rng(wanted.seed * 1000)
        for done, _ in enumerate(session.steps([f"{positions} positions"] * STEPS), start=1):
            while counts.positions < positions * done / STEPS:
                if session.out_of_time() and counts.positions:  # without a comparison it would look exact
                    return
                _count(counts, model, _lengths(rng, model), rng, positions - counts.positions)
    finally:
        torch.set_num_threads(threads)


def opened(folder: str, rows: int, settings: TargetSettings) -> AnyModel:
    """Return a folder's model with room for this many rows, on the runtime that serves it."""
    served = typed(folder, replace(settings, device="cpu", numerics="auto"))
    served = replace(served, kv_blocks=rows * ROW_POSITIONS // served.block_size)
    _, model = open_target(folder, served, CHUNK, 0, 0)
    return model


def _lengths(rng: np.random.Generator, model: AnyModel) -> list[int]:
    """Return different lengths of rows, most of them long, one the longest possible."""
    most = min(model.max_positions, ROW_POSITIONS) - 1
    return [most, *rng.integers(600, most, 3).tolist(), *rng.integers(1, 600, 2).tolist()]


def _count(counts: Counts, model: AnyModel, lengths: Sequence[int], rng: np.random.Generator, positions: int) -> None:
    """Compare about this many positions, or some more: rows are read whole."""
    texts = [rng.integers(0, model.vocab_size, length).astype(np.int32) for length in lengths]
    rows = Rows(model, texts, int(rng.integers(1 << 30)))
    expected: list[Seen] = [rows.alone(row, CHUNK) for row in range(len(texts))]
    before = counts.positions
    for passes in _compositions(lengths, rng):
        counts.compare(Rows(model, texts, int(rng.integers(1 << 30))), expected, passes)
        if counts.positions - before >= positions:
            return


def _compositions(lengths: Sequence[int], rng: np.random.Generator) -> Iterator[Iterator[Sequence[Step]]]:
    yield in_company(lengths, CHUNK, rng)
    for row, size in zip(rng.permutation(len(lengths)).tolist(), CHUNKS):
        yield in_chunks(row, lengths[row], size)
    for _ in range(2):
        yield in_company(lengths, CHUNK, rng)


def show(result: JsonDict, console: Console) -> None:
    row = [f"the target ({result['mode']})", *(str(result[key]) for key in asdict(Counts()))]
    console.print(report.table("Exactness", ["", "positions", "other ids", "other bits"], [row]))
