"""Records passes once and replays them: a replay costs the host one call instead of hundreds of launches."""

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

MOST = 256  # recordings that are kept
SEEN = 4 * MOST  # keys that came once and are remembered
_ONE_AT_A_TIME = threading.Lock()  # a recording first waits for the device, which breaks another thread's recording


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay: Callable[[], None]
    result: torch.Tensor


class Graphs:
    """Keeps a recording for each key that came more than once, because recording takes as long as dozens of passes. The
    work may read and write only fixed addresses, must not wait, and may run several times. The next run overwrites a
    result, so copy what you need first. A device that cannot record runs every pass directly."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._able = device.type == "cuda"
        self._recorded: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()  # keys that came once
        if device.type == "cuda":
            with torch.cuda.device(device):
                # The pool is freed with its last user, so one user stays. A library's workspaces belong to a stream and
                # are freed with a recording on it, so we have two streams of our own.
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
                log.warning("cannot record passes, so each takes longer from now on: %s", error)
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
            work()  # compiles kernels, which cannot happen during a recording
        now.wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._recording, capture_error_mode="thread_local"):
            result = work()
        log.debug("recorded %s in %.2f s", key, time.perf_counter() - started)
        return _Recorded(graph.replay, result)
