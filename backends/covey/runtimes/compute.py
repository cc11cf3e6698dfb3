"""The one thread of a target's process that computes.

PyTorch's OpenMP library, libgomp, keeps a pool of threads for every thread that ever opened a parallel region. If all
pools together have more threads than the process has processors, no pool thread spins while it waits for the next
region. Each of the hundreds of regions of a pass must then wake its threads. Passes take up to three times as long
until the process ends. So one thread loads, checks, runs and moves a target's model. Drafters and the native runtime
compute without OpenMP's threads, so any thread may call them, and then no other one must be woken.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, ParamSpec, TypeVar

from covey.process.worker import Thread

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class Compute:
    """Owns the thread. It ends with this object."""

    def __init__(self, threads: int = 0, *, anywhere: bool = False) -> None:
        """Start the thread. It uses `threads` OpenMP threads, by default the creating thread's number, and that one's
        GPU. `anywhere`: `run` makes its calls in the caller's thread."""
        self._thread, self._anywhere = Thread("compute"), anywhere
        self._queued: Future[Any] | None = None  # the last call that `submit` got
        torch = sys.modules.get("torch")  # missing if another runtime computes
        device = None
        if torch is not None:
            device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            threads = threads or torch.get_num_threads()
        self._ident = self._thread.submit(_prepare, (threads, device)).result()

    def run(self, call: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Make the call in the thread, after earlier calls, and return its result. From within the thread, make it at
        once."""
        inside = threading.get_ident() == self._ident
        if self._queued is not None and self._anywhere and not inside:
            wait((self._queued,))
            self._queued = None
        if self._anywhere or inside:
            return call(*given, **named)
        return self.submit(lambda _: call(*given, **named), None).result()

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        """Queue a call after earlier ones, and return without waiting."""
        queued = self._queued = self._thread.submit(call, argument)
        return queued


def _prepare(setting: tuple[int, int | None]) -> int:
    threads, device = setting
    torch = sys.modules.get("torch")
    if torch is None:
        return threading.get_ident()
    torch.get_num_threads()  # a thread's first query resets its number to the last one set in any thread: query first
    torch.set_num_threads(threads)
    if device is not None:
        torch.cuda.set_device(device)
    return threading.get_ident()
