"""Passes recorded once and replayed: on a GPU a recorded pass costs the host one call instead of hundreds."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)

MOST = 256  # recorded passes that are kept
SEEN = 4 * MOST  # keys that are remembered for having come once
_ONE_AT_A_TIME = threading.Lock()  # a recording begins by waiting for the device, which breaks another thread's


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay: Callable[[], None]
    result: torch.Tensor


class Graphs:
    """Keeps a recording for each key that came more than once: to record takes as long as dozens of passes. The work
    reads and writes at fixed places alone, waits for nothing, and may run several times over. Results are overwritten
    by any later run: take what is wanted from them first. A device that cannot record runs everything as it comes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._able = device.type == "cuda"
        self._recorded: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()  # once
        if device.type == "cuda":
            with torch.cuda.device(device):
                # The pool goes when its last user does, so it has one that stays. Libraries' workspaces belong to a
                # stream: two of our own, lest another's recording that goes takes them along.
                self._home = torch.cuda.MemPool()
                self._pool: Any = self._home.id
                self._aside, self._recording = torch.cuda.Stream(), torch.cuda.Stream()

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, key: Hashable, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the result of `work`, which is recorded at the second run of its key."""
        if not self._able:
            return work()
        recording = self._recorded.get(key)
        if recording is not None:
            self._recorded.move_to_end(key)
        elif key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            return work()
        else:
            try:
                with _ONE_AT_A_TIME:
                    recording = self._recorded[key] = self._record(key, work)
            except RuntimeError as error:
                log.warning("nothing is recorded from here on, so passes take longer: %s", error)
                self._able = False
                return work()
            if len(self._recorded) > MOST:
                self._recorded.popitem(last=False)
        recording.replay()
        return recording.result

    def _record(self, key: Hashable, work: Callable[[], torch.Tensor]) -> _Recorded:
        started = time.perf_counter()
        now = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(now)
        with torch.cuda.stream(self._aside):
            work()  # compiles kernels, which a recording must not
        now.wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._recording, capture_error_mode="thread_local"):
            result = work()
        log.debug("recorded %s in %.2f s", key, time.perf_counter() - started)
        return _Recorded(graph.replay, result)
