"""The one thread of a target's process that computes.

PyTorch's OpenMP library, libgomp, keeps a pool of threads for every thread that ever opened a parallel region. As soon
as all pools together have more threads than the process has processors, no thread of any pool waits awake for the next
region any more: each of the hundreds of regions of a pass has to wake one, and passes take up to three times as long
until the process ends. So a target has its model loaded, proved, run and moved in one thread. A drafter needs none: it
computes without OpenMP's threads, in whichever thread a call is in, and has no pool.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from covey.process.worker import Thread

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class Compute:
    """Owns the thread. It ends with this object."""

    def __init__(self, threads: int = 0) -> None:
        """Start the thread. It computes with so many OpenMP threads, by default with as many as the thread that makes
        it, and on that one's GPU."""
        self._thread = Thread("compute")
        torch = sys.modules.get("torch")  # a process that has not imported it computes with something else
        device = None
        if torch is not None:
            device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            threads = threads or torch.get_num_threads()
        self._ident = self._thread.submit(_prepare, (threads, device)).result()

    def run(self, call: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Make the call there after those before it, and return what it returns. Called by what runs there already, it
        is made at once."""
        if threading.get_ident() == self._ident:
            return call(*given, **named)
        return self.submit(lambda _: call(*given, **named), None).result()

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        """The call is made there after those before it; nobody waits."""
        return self._thread.submit(call, argument)


def _prepare(setting: tuple[int, int | None]) -> int:
    threads, device = setting
    torch = sys.modules.get("torch")
    if torch is None:
        return threading.get_ident()
    torch.get_num_threads()  # a thread's first question, or region, sets its number to what was set last in any thread
    torch.set_num_threads(threads)
    if device is not None:
        torch.cuda.set_device(device)
    return threading.get_ident()
