"""The guesses of drafters as recorded on a real pair: `profiles/acceptance/*.json`.

    {"covey_guesses": 1, "name": "...", "origin": "how and on what it was recorded",
     "subjects": {"code": [{"places": [123, ...], "share": [[0.7, 0.1, ...], ...], "q": ..., "accepted": ...},
                           ...], "": ...}}

Each subject, with "" for all others, has one table per depth of a draft; the last serves all deeper ones. A table's
places are binned by how clearly the best guess leads. For each bin and rank of a guess it holds three numbers: the
mean share of the race, the mean probability, and how often this guess was right if all before it were. So an emulated
guess is as confident as the recorded one, and wrong as often.

Here the places of a path are independent; in a text they are not. After a wrong guess, a path goes on as if it were
right, which only affects readers that believe its scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from covey.contracts.errors import SettingError
from covey.contracts.types import NO_FLOATS, Ints, Trees
from covey.emulated.hash_model import HashModel, States

VERSION = 1
DESCENT = 1e-6  # a child scores at least this much less than its parent, as with real drafters
Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Guesses:
    """The tables of all subjects: [subject, depth, bin], and rank as the last axis except for `bounds`."""

    subjects: Mapping[str, int]
    bounds: Array  # the share of places in this bin and those before it
    log_share: Array
    log_q: Array
    right: Array  # how often a guess of this rank or a better one is right

    @classmethod
    def load(cls, path: str | Path) -> Guesses:
        """Load tables from a file. Raises SettingError if it is missing or holds no such tables."""
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
            if table["covey_guesses"] != VERSION:
                raise ValueError(f"its covey_guesses is not {VERSION}")
            return cls.of(table["subjects"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise SettingError(f"recorded guesses {path}: {type(error).__name__}: {error}") from None

    @classmethod
    def of(cls, subjects: Mapping[str, Sequence[Mapping[str, Sequence[object]]]]) -> Guesses:
        """Return the tables of `subjects`. Raises ValueError if their sizes differ or "" is missing."""
        tables = {
            key: np.array([[depth[key] for depth in depths] for depths in subjects.values()], np.float64)
            for key in ("places", "share", "q", "accepted")
        }
        if "" not in subjects or not all(tables[key].ndim == 4 for key in ("share", "q", "accepted")):
            raise ValueError("a table for all other subjects is missing, or the tables' sizes differ")
        places = tables["places"].cumsum(axis=2)
        right = tables["accepted"].cumsum(axis=3)
        if (tables["places"] < 0).any() or (tables["accepted"] < 0).any() or (right > 1.001).any():
            raise ValueError("a share of guesses is negative, or more than all are right")
        tiny = 1e-4  # about half the rounding step of recorded numbers
        return cls(
            {subject: index for index, subject in enumerate(subjects)},
            places / places[:, :, -1:],
            np.log(np.clip(tables["share"], tiny, 1.0)),
            np.log(np.clip(tables["q"], tiny, 1.0)),
            right,
        )

    def subject(self, *names: str) -> int:
        """Return the index of the first of `names` that has a table, else of the table for all others."""
        return next((self.subjects[name] for name in names if name in self.subjects), self.subjects[""])


class Guesser:
    """Beams of guesses over a hash model's texts. `salt` makes the luck of drafters differ."""

    def __init__(self, guesses: Guesses, model: HashModel, salt: int) -> None:
        self._guesses = guesses
        self._model = model
        self._salt = salt

    def trees(self, states: States, subjects: Index, depths: Ints, widths: Ints) -> Trees:
        """Return a tree for every row of depth at least 1, by beam search over path scores like
        `covey.drafters.proposing`. Rows of one width are searched together."""
        rows = len(states)
        parts: list[tuple[Index, Index, Index, Array, Array]] = []
        for width in sorted(set(widths[depths > 0].tolist())):
            mine = np.flatnonzero((depths > 0) & (widths == width))
            parts.append(self._beams(mine, states[mine], subjects[mine], depths[mine], width))
        if not parts:
            return Trees.empty(rows)
        row, tokens, parents, scores, log_q = (np.concatenate(column) for column in zip(*parts))
        order = np.argsort(row, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int32)
        return Trees(
            offsets,
            tokens[order].astype(np.int32),
            parents[order].astype(np.int32),
            scores[order].astype(np.float32),
            log_q=log_q[order].astype(np.float32) if len(log_q) else NO_FLOATS,
        )

    def _beams(
        self, rows: Index, states: States, subjects: Index, depths: Ints, width: int
    ) -> tuple[Index, Index, Index, Array, Array]:
        """Return packed nodes, row by row and level by level: row, token, parent, path score, path log q."""
        count = len(rows)
        every = np.arange(count)[:, None]
        level = states[:, None]
        path, path_q = np.zeros((count, 1)), np.zeros((count, 1))
        above, placed = -1, 0  # where the level above, and this level, begin among a row's nodes
        columns = []
        for step in range(int(depths.max())):
            share, log_q, right, ranks = self._ranked(level, subjects, step)
            total = (path[..., None] + np.minimum(share, -DESCENT)).reshape(count, -1)
            best = np.argsort(-total, axis=1, kind="stable")[:, :width]
            lane, rank = best // ranks, best % ranks
            path, path_q = total[every, best], path_q[every, lane] + log_q[every, lane, rank]
            tokens = self._tokens(level[every, lane], rank, right[every, lane])
            level = self._model.states(tokens, level[every, lane])
            parents = np.full(lane.shape, -1) if above < 0 else above + lane
            deep = np.broadcast_to(depths[:, None] > step, lane.shape)
            columns.append((np.broadcast_to(rows[:, None], lane.shape), tokens, parents, path, path_q, deep))
            above, placed = placed, placed + best.shape[1]
        *packed, deep = (np.concatenate(column, axis=1) for column in zip(*columns))
        row, tokens, parents, scores, log_q = (column[deep] for column in packed)
        return row, tokens, parents, scores, log_q

    def _ranked(self, states: States, subjects: Index, step: int) -> tuple[Array, Array, Index, int]:
        """Return shares, log q and the right rank of each place [row, lane], and the number of ranks. Shares and log q
        have ranks as their last axis. The right rank is the number of ranks if none is right."""
        tables, depth = self._guesses, min(step, self._guesses.bounds.shape[1] - 1)
        subject = subjects[:, None]
        bounds = tables.bounds[subject, depth]
        bins = (self._model.lucks(states, self._salt)[..., None] >= bounds[..., :-1]).sum(axis=-1)
        reached = tables.right[subject, depth, bins]
        right = (self._model.lucks(states, self._salt ^ 0x51ED)[..., None] >= reached).sum(axis=-1)
        return tables.log_share[subject, depth, bins], tables.log_q[subject, depth, bins], right, reached.shape[-1]

    def _tokens(self, states: States, ranks: Index, right: Index) -> Index:
        """Return the guesses as tokens: the text's next token if that rank is right, other tokens if not."""
        low, count = self._model.low, self._model.vocab_size - self._model.low
        own = self._model.nexts(states)
        return np.where(ranks == right, own, low + (own - low + 1 + ranks) % count)
