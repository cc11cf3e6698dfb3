"""Stand-ins for ports: a target whose next token is a hash of the tokens before it, and a clock by hand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

import numpy as np

from covey.contracts.errors import PortError
from covey.contracts.types import (
    Finish,
    Progress,
    Request,
    Resized,
    ResizeStatus,
    RowStatus,
    Sampling,
    Scores,
    TargetInfo,
    TargetReply,
    TargetWork,
)

VOCAB = 97


def next_token(tokens: Sequence[int]) -> int:
    """The whole language model."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class HashTarget:
    """Implements `covey.contracts.ports.Target`. Counts blocks as a real pool would, and records every work it was
    given."""

    def __init__(self, blocks: int = 1000, block_size: int = 4, end_ids: tuple[int, ...] = ()) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.end_ids = end_ids
        self.tokens: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.works: list[TargetWork] = []
        self.fail_with: list[PortError] = []

    def info(self) -> TargetInfo:
        return TargetInfo("hash", VOCAB, 512, self.block_size, self.blocks, self.end_ids, "invariant", "", "", 1, "")

    def restart(self) -> None:
        self.tokens.clear()
        self.cached.clear()

    @property
    def used(self) -> int:
        return sum(-(-count // self.block_size) for count in self.cached.values())

    def resize(self, blocks: int) -> Resized:
        self.blocks = blocks
        return Resized(ResizeStatus.OK, blocks)

    def step(self, work: TargetWork) -> TargetReply:
        if self.fail_with:
            raise self.fail_with.pop(0)
        self.works.append(work)
        for tag in work.frees:
            self.tokens.pop(tag, None)
            self.cached.pop(tag, None)
        for opening in work.opens:
            self.tokens[opening.tag] = opening.tokens.tolist()
            self.cached[opening.tag] = 0
        status, cached, accepted, lengths, emitted = [], [], [], [], []
        for row, tag in enumerate(work.tags.tolist()):
            new: list[int] = []
            accept = 0
            if tag not in self.tokens or len(self.tokens[tag]) != work.base[row]:
                status.append(RowStatus.STALE)
            else:
                status.append(self._row(tag, int(work.chunk[row])))
                if status[-1] == RowStatus.OK and self.cached[tag] == len(self.tokens[tag]):
                    drafts = work.trees.tokens[work.trees.offsets[row] : work.trees.offsets[row + 1]].tolist()
                    new, accept = self._verify(tag, drafts)
            cached.append(self.cached.get(tag, 0))
            accepted.append(accept)
            lengths.append(len(new))
            emitted += new
        count = len(status)
        return TargetReply(
            status=np.asarray(status, np.int32),
            num_cached_tokens=np.asarray(cached, np.int32),
            reused=np.zeros(count, np.int32),
            accepted=np.asarray(accepted, np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            tokens=np.asarray(emitted, np.int32),
            logprobs=np.zeros(len(emitted), np.float32),
            free_blocks=self.blocks - self.used,
            total_blocks=self.blocks,
            epoch=1,
            seconds=0.0,
        )

    def _row(self, tag: int, chunk: int) -> RowStatus:
        before = self.cached[tag]
        self.cached[tag] = min(before + chunk, len(self.tokens[tag]))
        if self.used > self.blocks:
            self.cached[tag] = before
            return RowStatus.NO_BLOCKS
        return RowStatus.OK

    def _verify(self, tag: int, drafts: list[int]) -> tuple[list[int], int]:
        tokens = self.tokens[tag]
        new = [next_token(tokens)]
        for draft in drafts:
            if draft != new[-1]:
                break
            new.append(next_token(tokens + new))
        tokens += new
        self.cached[tag] = len(tokens) - 1
        return new, len(new) - 1


class Collector:
    """Implements `covey.contracts.ports.Sink`: keeps everything."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[float]] = {}
        self.scores: dict[int, Scores] = {}  # of prompts
        self.top: dict[int, list[tuple[list[int], bytes]]] = {}  # the likeliest tokens
        self.ended: dict[int, Progress] = {}
        self.on_publish: Callable[[], None] = lambda: None

    def publish(self, batch: Sequence[Progress]) -> None:
        for item in batch:
            assert item.key not in self.ended, "progress after the end"
            self.tokens.setdefault(item.key, []).extend(item.tokens.tolist())
            self.logprobs.setdefault(item.key, []).extend(item.logprobs.tolist())
            rows = zip(item.top.ids.tolist(), item.top.logprobs)
            self.top.setdefault(item.key, []).extend((ids, values.tobytes()) for ids, values in rows)
            if len(item.scores.logprobs):
                assert item.key not in self.scores, "a prompt's scores come once"
                self.scores[item.key] = item.scores
            if item.finish is not None:
                self.ended[item.key] = item
        self.on_publish()

    def finish(self, key: int) -> Finish | None:
        return self.ended[key].finish


class ManualClock:
    """Implements `covey.contracts.ports.Clock`: time passes when told, by any thread."""

    def __init__(self) -> None:
        self.time = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.time += seconds


def request(key: int, prompt: Sequence[int], max_tokens: int = 8, **settings: object) -> Request:
    sampling = settings.pop("sampling", Sampling())
    assert isinstance(sampling, Sampling)
    return Request(
        key=key,
        prompt=np.asarray(prompt, np.int32),
        max_tokens=max_tokens,
        sampling=sampling,
        num_prompt=len(prompt),
        arrival=float(key),
        **settings,  # type: ignore[arg-type]
    )
