"""Measures how long processes had a processor or waited for one.

On a busy machine a slow process looks like one that hangs; time in which it wanted to run and could not says nothing
about it.
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
    """Return the seconds for which a thread has run, and waited for a processor, since it began; 0 if there is no such
    thread any more, or Linux does not say. A process's first thread has its number."""
    try:
        ran, waited, _ = (PROC / str(thread) / "task" / str(thread) / "schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / NANOSECONDS, int(waited) / NANOSECONDS


class Starved:
    """Owns how long each thread had run and waited at the last look, by Linux's `schedstat`, if it exists."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self.ran = 0.0  # seconds of processors that they all had between the last two looks
        self._processors = cpu.cores()

    def counted(self, pids: Iterable[int], seconds: float) -> float:
        """Return how many of the seconds since the last look count against these processes: at least a fifth, because
        where many wait for a processor a process that hangs does, too."""
        return max(LEAST_SHARE * seconds, seconds - self.look(pids))

    def look(self, pids: Iterable[int]) -> float:
        """Return the longest wait of a thread since the last look, in seconds, less what all threads had of the
        processors that they can use: threads that spin wait for one another. Nothing is known of a new thread.

        Two threads that run half of a second each on one processor, beside another process that has the rest of two,
        waited for 0.5 s and had 1 s of the 2 that they could use: that leaves nothing. Had they run for 0.1 s each and
        waited for 0.9 s, 0.8 s of it would be starving."""
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
        had = ran / max(1, min(active, self._processors))
        return max(0.0, longest - had) / NANOSECONDS


def _threads(pid: int) -> list[Path]:
    """Return the files that say how long each of a process's threads ran; none where it has ended meanwhile."""
    try:
        return list(PROC.glob(f"{pid}/task/*/schedstat"))
    except OSError:
        return []
