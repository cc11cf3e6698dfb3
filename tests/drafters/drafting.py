"""Messages to drafters, as an orchestrator that keeps its own books would send them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covey.contracts.ports import Drafter
from covey.contracts.types import (
    DraftReply,
    DraftWork,
    Open,
    RowStatus,
    Sampling,
    Trees,
)


@dataclass
class Text:
    """One request: its tokens so far and how many of them the drafter holds, None when it must be told all."""

    tag: int
    tokens: list[int]
    sampling: Sampling = field(default_factory=Sampling)
    tenant: str = ""
    seen: int | None = None
    rounds: int = 0

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)


class Sender:
    """Sends texts to one drafter and notes what it holds."""

    def __init__(self, drafter: Drafter, origin: int | None = None) -> None:
        self.drafter = drafter
        self.origin = secrets.randbits(62) if origin is None else origin
        self.sequence = 0
        self.epoch = 0

    def work(
        self,
        texts: Sequence[Text],
        depth: int | Sequence[int],
        width: int | Sequence[int] = 1,
        frees: Sequence[int] = (),
        q_rows: bool = False,
    ) -> DraftWork:
        rows = len(texts)
        opens = tuple(
            Open(text.tag, np.asarray(text.tokens, np.int32), text.num_prompt, text.sampling, text.tenant, text.rounds)
            for text in texts
            if text.seen is None
        )
        keep = [len(text.tokens) if text.seen is None else text.seen for text in texts]
        parts = [text.tokens[kept:] for text, kept in zip(texts, keep)]
        self.sequence += 1
        return DraftWork(
            tags=np.asarray([text.tag for text in texts], np.int32),
            keep=np.asarray(keep, np.int32),
            offsets=np.cumsum([0, *map(len, parts)]).astype(np.int32),
            tokens=np.asarray([token for part in parts for token in part], np.int32),
            depth=np.broadcast_to(np.asarray(depth, np.int32), rows),
            width=np.broadcast_to(np.asarray(width, np.int32), rows),
            rounds=np.asarray([text.rounds for text in texts], np.int32),
            q_rows=q_rows,
            opens=opens,
            frees=tuple(frees),
            sequence=self.sequence,
            epoch=self.epoch,
            origin=self.origin,
            **self.states_of(texts),
        )

    def states_of(self, texts: Sequence[Text]) -> dict[str, Any]:  # noqa: ARG002
        """What only heads are sent."""
        return {}

    def send(
        self,
        texts: Sequence[Text],
        depth: int | Sequence[int],
        width: int | Sequence[int] = 1,
        frees: Sequence[int] = (),
        q_rows: bool = False,
    ) -> DraftReply:
        return self._noted(texts, self.drafter.draft(self.work(texts, depth, width, frees, q_rows)))

    def _noted(self, texts: Sequence[Text], reply: DraftReply) -> DraftReply:
        self.epoch = reply.epoch
        for text, status, seen in zip(texts, reply.status.tolist(), reply.seen.tolist()):
            text.seen = None if status == RowStatus.STALE else seen
        return reply


def rows_of(trees: Trees) -> list[list[int]]:
    """Each row's tokens."""
    return [trees.tokens[a:b].tolist() for a, b in zip(trees.offsets, trees.offsets[1:])]


def paths_of(trees: Trees, row: int) -> list[list[int]]:
    """The path of tokens to each node of a row."""
    start, end = trees.offsets[row], trees.offsets[row + 1]
    paths: list[list[int]] = []
    for token, parent in zip(trees.tokens[start:end].tolist(), trees.parents[start:end].tolist()):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths
