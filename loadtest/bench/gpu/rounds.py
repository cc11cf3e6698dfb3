"""Measures single rounds for the bench `gpu`: how near plain decoding comes to the time of reading the weights, and the
time of a round outside the device's work."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch

from covey.contracts.types import JsonDict
from covey.models.lanes import Lanes, Pass
from covey.models.model import PagedModel
from covey.requests.rounds import RoundRecord
from loadtest.bench.gpu.ceilings import bandwidth
from loadtest.bench.gpu.rig import BLOCK_SIZE, OFF, Rig
from loadtest.bench.gpu.timing import milliseconds, over, queued

CONTEXTS, CONTEXTS_OFF_GPU = (512, 3968), (32,)
STEPS = 96  # tokens decoded at a context
ROWS, ROWS_OFF_GPU = (1, 64), (1, 3)
PROMPT = 64
SPECULATIVE = "fixed:3"
SETTLING = 4  # rounds before any is counted
PHASES = {  # of a round on the host, by their names in its record
    "planning": "plan_seconds",
    "drafting": "draft_seconds",
    "in the target": "pass_seconds",
    "committing in the engine": "commit_seconds",
}


def plain(rig: Rig, found: JsonDict) -> None:
    """Decode one row, token by token: time the recorded pass alone, and all of the engine around it."""
    for context in CONTEXTS if rig.on_gpu else CONTEXTS_OFF_GPU:
        found[str(context)] = _plain(rig, context, STEPS if rig.on_gpu else 12)


def _plain(rig: Rig, context: int, steps: int) -> JsonDict:
    model = rig.loaded().target
    middle = context + steps // 2
    work = _one_token(middle, model.blocks, rig.session.wanted.seed, model.padding_slot)
    alone, size = None, None
    if not isinstance(model, PagedModel):
        bucket = model.give(work)
        with torch.inference_mode():
            alone = queued(lambda: model.graphs.run(bucket, lambda: model.compute(bucket)), rig.device)
        size = model.decoder.weight_bytes + middle * model.bytes_per_block // model.block_size
    rounds = _Rounds({})
    with closing(rig.engine(OFF, observe=rounds.observe)) as engine:
        for seed in (0, 1):  # the first records what the second runs
            rounds.clear()
            asks = rig.asks(1, prompt=(context, context), output=(steps, steps), seed=seed)
            engine.run(asks, 1, tenant=f"plain {context} {seed}")
    whole = median(each.seconds for each in rounds.plain(1))
    limit = bandwidth(rig)
    return {
        "bytes": size,
        "pass_ms": milliseconds(alone),
        "token_ms": _of_gpu(rig, whole),
        "pass_share_of_limit": over(over(size, alone), limit),
        "share_of_limit": over(over(size, whole), limit) if rig.on_gpu else None,
    }


def _one_token(context: int, blocks: int, seed: int, nowhere: int) -> Pass:
    """Return the pass of one row's last token, over keys scattered among this many blocks; it is kept nowhere."""
    ids = np.random.default_rng(seed).permutation(blocks)[: -(-context // BLOCK_SIZE)].astype(np.int32)
    lanes = Lanes(np.array([0, 1], np.int32), np.array([context], np.int32), ids[np.newaxis])
    one = np.zeros(1, np.int32)
    return Pass(one, np.array([context - 1], np.int32), np.array([nowhere], np.int32), lanes, one)


def overhead(rig: Rig, found: JsonDict) -> None:
    """Measure the time of a round outside the device's passes, which events before and after each pass give. Draws are
    not passes, so the device's time for them counts here."""
    loaded = rig.loaded()
    outputs = 128 if rig.on_gpu else 12
    for rows in ROWS if rig.on_gpu else ROWS_OFF_GPU:
        for policy in (OFF, SPECULATIVE):
            passes = {"target": _TimedGraphs(rig, loaded.target), "drafter": _TimedGraphs(rig, loaded.drafter)}
            rounds = _Rounds(passes)
            with ExitStack() as stack:
                engine = stack.enter_context(closing(rig.engine(policy, observe=rounds.observe)))
                for seed in (0, 1):
                    asks = rig.asks(rows, prompt=(PROMPT, PROMPT), output=(outputs, outputs), seed=seed)
                    if seed:
                        rounds.clear()
                        for each in passes.values():
                            stack.enter_context(each.watched())
                    engine.run(asks, rows, tenant=f"overhead {policy} {rows} {seed}")
            found.setdefault(str(rows), {})[policy] = _shares(rig, rounds.plain(rows)[SETTLING:])


def _shares(rig: Rig, rounds: list[_Round]) -> JsonDict:
    if not rounds:
        return {"round_ms": None, "device_ms": None, "outside_ms": None, "parts_ms": None, "rounds": 0}
    whole = median(each.seconds for each in rounds)
    by_model = {name: median(each.device(name) for each in rounds) for name in ("target", "drafter")}
    device = sum(by_model.values())
    parts = {name: median(getattr(each.record, of) for each in rounds) for name, of in PHASES.items()}
    return {
        "round_ms": _of_gpu(rig, whole),
        "device_ms": _of_gpu(rig, device),
        "device_ms_by_model": {name: _of_gpu(rig, seconds) for name, seconds in by_model.items()},
        "outside_ms": _of_gpu(rig, whole - device),
        "parts_ms": {name: 1000 * seconds for name, seconds in parts.items()} if rig.on_gpu else None,
        "rounds": len(rounds),
    }


def _of_gpu(rig: Rig, seconds: float) -> float | None:
    """Return milliseconds; None without a GPU."""
    return 1000 * seconds if rig.on_gpu else None


@dataclass
class _Round:
    """Describes a round: the time since the round before it, its kind, and the time of its passes."""

    seconds: float
    record: RoundRecord
    events: Mapping[str, list[tuple[Any, Any]]]

    def device(self, name: str) -> float:
        """Return the seconds on the device; waits for it."""
        found = 0.0
        for before, after in self.events[name]:
            after.synchronize()
            found += before.elapsed_time(after) / 1000
        return found


@dataclass
class _Rounds:
    """Collects all rounds of an engine so far."""

    passes: Mapping[str, _TimedGraphs]
    found: list[_Round] = field(default_factory=list)
    _last: float = 0.0

    def observe(self, record: RoundRecord) -> None:
        now = time.perf_counter()
        events = {name: each.taken() for name, each in self.passes.items()}
        self.found.append(_Round(now - self._last, record, events))
        self._last = now

    def clear(self) -> None:
        self.found.clear()
        self._last = time.perf_counter()

    def plain(self, rows: int) -> list[_Round]:
        """Return the rounds of this many rows, all decoding, that follow another such round."""
        good = [
            each.record.decoding == rows and not each.record.prefill_tokens and each.record.rows == rows
            for each in self.found
        ]
        return [each for each, fits, before in zip(self.found[1:], good[1:], good) if fits and before]


class _TimedGraphs:
    """Stands in for a model's recordings: an event before and after each run of one."""

    def __init__(self, rig: Rig, model: Any) -> None:
        self._model = model
        self._graphs: Any = getattr(model, "graphs", None)  # plain PyTorch has none
        self._on_gpu = rig.on_gpu
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        if self._graphs is None:
            yield
            return
        with patch.object(self._model, "graphs", self):
            yield

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        if not self._on_gpu:
            return cast("torch.Tensor", self._graphs.run(key, work))
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        found: torch.Tensor = self._graphs.run(key, work)
        after.record()
        self._events.append((before, after))
        return found

    def taken(self) -> list[tuple[Any, Any]]:
        """Return the events since it was last asked."""
        events, self._events = self._events, []
        return events
