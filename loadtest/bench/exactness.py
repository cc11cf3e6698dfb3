"""Measures whether a token's draw is the same bits whatever shares its passes, at every length.

Rows of random tokens are read alone, then in other chunks and in changing company. At every position the ids drawn at
temperature 0 and 1 and the bits of their log-probabilities are compared. `positions`, `ids_differing` and
`bits_differing` are totals over the models that came up in mode `invariant`, where both must be 0; `models` has each
model's own and says its mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from covey.contracts import profile
from covey.contracts.profile import TargetSettings
from covey.contracts.types import JsonDict
from covey.runtimes.resizing import AnyModel
from loadtest.bench import exactness_models, report
from loadtest.bench.exactness_models import SHAPES, RandomModel
from loadtest.bench.exactness_rows import TEMPERATURES, Differences, Rows, Seen, Step, in_chunks, in_company
from loadtest.bench.session import Session

INVARIANT = "invariant"
BUNDLED = "the target"
TARGET, RANDOM = "target", "random"
CHUNK = exactness_models.PASS_TOKENS  # of a row that is read alone, for comparison
CHUNKS = (249, 100, 7)  # ... and of one read alone once more
POSITIONS, FULL_POSITIONS, QUICK_POSITIONS = 120_000, 1_000_000, 4_000
SHARE_OF_TARGET = 0.5  # of them; the random models share the rest, where there are both
STEPS = 10  # of the comparisons, for the bar
POOL_ROWS = 6  # of a comparison


@dataclass
class ExactnessFound:
    """Holds what was found, by model."""

    modes: dict[str, str] = field(default_factory=dict)
    tallies: dict[str, Differences] = field(default_factory=lambda: defaultdict(Differences))

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        exact = Differences()
        for name, tally in self.tallies.items():
            if self.modes.get(name) == INVARIANT:
                exact.join(tally)
        return {
            **exact.as_json(),
            "models": {name: {"mode": mode, **self.tallies[name].as_json()} for name, mode in self.modes.items()},
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    settings = profile.load(wanted.profile)
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.target.threads or threads)
    measured = ExactnessFound()
    session.summarise = measured.summary
    session.notes["temperatures"] = list(TEMPERATURES)
    parts = wanted.parts_of((TARGET, RANDOM))
    sources: dict[str, RandomModel | str] = {BUNDLED: wanted.target_folder(settings)} if TARGET in parts else {}
    sources |= SHAPES if RANDOM in parts else {}
    shares = {name: SHARE_OF_TARGET if name == BUNDLED else (1 - SHARE_OF_TARGET) / len(SHAPES) for name in sources}
    total, due = wanted.sized(POSITIONS, FULL_POSITIONS, QUICK_POSITIONS), 0.0
    try:
        for index, (name, source) in enumerate(sources.items()):
            share = shares[name] / sum(shares.values())
            due += share  # of the time, that a slow machine compares some positions of every model
            positions, seed = int(share * total), wanted.seed * 1000 + index
            _model(session, measured, name, source, settings.target, positions, due, seed)
    finally:
        torch.set_num_threads(threads)


def _model(
    session: Session,
    measured: ExactnessFound,
    name: str,
    source: RandomModel | str,
    settings: TargetSettings,
    positions: int,
    due: float,
    seed: int,
) -> None:
    with session.status(f"loading {name}"):
        model = exactness_models.load(source, POOL_ROWS, settings)
    measured.modes[name] = model.numerics
    rng = np.random.default_rng(seed)
    tally = measured.tallies[name]
    for done, _ in enumerate(session.steps([f"{name}: {positions} positions"] * STEPS), start=1):
        while tally.total.positions < positions * done / STEPS:
            late = session.out_of_time(due)
            if late and tally.total.positions:  # a model without any comparison would seem exact
                break
            _tally(tally, model, _lengths(rng, model), rng, 1 if late else positions - tally.total.positions)


def _lengths(rng: np.random.Generator, model: AnyModel) -> list[int]:
    """Return the lengths of rows that are unlike, most of them long, one as long as can be."""
    most = min(model.max_positions, exactness_models.POSITIONS) - 1
    return [most, *rng.integers(600, most, 3).tolist(), *rng.integers(1, 600, 2).tolist()]


def _tally(
    tally: Differences, model: AnyModel, lengths: Sequence[int], rng: np.random.Generator, positions: int
) -> None:
    """Compare about so many positions, or some more: rows are read whole."""
    texts = [rng.integers(0, model.vocab_size, length).astype(np.int32) for length in lengths]
    rows = Rows(model, texts, int(rng.integers(1 << 30)))
    expected: list[Seen] = [rows.alone(row, CHUNK) for row in range(len(texts))]
    before = tally.total.positions
    for passes in _compositions(lengths, rng):
        tally.compare(Rows(model, texts, int(rng.integers(1 << 30))), expected, passes)
        if tally.total.positions - before >= positions:
            return


def _compositions(lengths: Sequence[int], rng: np.random.Generator) -> Iterator[Iterator[Sequence[Step]]]:
    yield in_company(lengths, CHUNK, rng)
    for row, size in zip(rng.permutation(len(lengths)).tolist(), CHUNKS):
        yield in_chunks(row, lengths[row], size)
    for _ in range(2):
        yield in_company(lengths, CHUNK, rng)


def show(result: JsonDict, console: Console, _picture: Path) -> None:
    rows = [
        [f"{name} ({found['mode']})", *(str(found[key]) for key in ("positions", "ids_differing", "bits_differing"))]
        for name, found in result["models"].items()
    ]
    for title in ("by_length", "by_company"):
        rows += [[band, *(str(value) for value in counts.values())] for band, counts in result[title].items()]
    console.print(report.table("Exactness", ["", "positions", "other ids", "other bits"], rows))
