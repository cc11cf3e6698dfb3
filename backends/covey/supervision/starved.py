"""Measures how long processes had a processor or waited for one.

On a loaded machine a slow process looks like one that hangs. Time in which it was ready to run but had no processor is
no evidence that it hangs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from covey.process import cpu

PROC = Path("/proc")

NANOSECONDS = 1e9
LEAST_SHARE = 0.2


def times(thread: int) -> tuple[float, float]:
    """Return the seconds for which a thread has run, and has waited for a processor. Both are 0 if the thread has ended
    or Linux does not say. A process's first thread has the process's number."""
    try:
        ran, waited, _ = (PROC / str(thread) / "task" / str(thread) / "schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / NANOSECONDS, int(waited) / NANOSECONDS


class Starved:
    """Owns each thread's run and wait times at the last look, from Linux's `schedstat` if it exists."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self.ran = 0.0  # processor seconds of all threads between the last two looks

    def counted(self, pids: Iterable[int], seconds: float) -> float:
        """Return how many of the last `seconds` count against these processes. At least a fifth do, because on a
        machine where many wait for a processor, a process that hangs waits as well."""
        return max(LEAST_SHARE * seconds, seconds - self.look(pids))

    def look(self, pids: Iterable[int]) -> float:
        """Return for how many seconds the processes were starved since the last look.

        It is the longest wait of a thread, less the mean time for which the processors that they can use ran them.
        That time counts as waiting for one another, as threads that spin do. A new thread counts from its second look.

        Two threads can use two processors. If each ran 0.5 s and waited 0.5 s, they had 1 s of 2: 0.5 - 1 / 2 = 0 s
        starved. If each ran 0.1 s and waited 0.9 s: 0.9 - 0.2 / 2 = 0.8 s starved."""
        before, self._before = self._before, {}
        ran, longest, active = 0, 0, 0
        for pid in pids:
            for path in _threads(pid):
                with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                    run, wait, _ = map(int, path.read_text().split())
                    was = before.get(path.parent.name, (run, wait))
                    self._before[path.parent.name] = run, wait
                    ran, longest = ran + run - was[0], max(longest, wait - was[1])
                    active += (run, wait) != was
        self.ran = ran / NANOSECONDS
        had = ran / max(1, min(active, cpu.cores()))
        return max(0.0, longest - had) / NANOSECONDS


def _threads(pid: int) -> list[Path]:
    """Return the `schedstat` files of a process's threads; none if it has ended."""
    try:
        return list(PROC.glob(f"{pid}/task/*/schedstat"))
    except OSError:
        return []
