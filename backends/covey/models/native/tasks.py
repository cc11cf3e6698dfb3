"""Tasks of a stage that threads take, each its own share first and then the others': no thread waits for one that the
system has put aside between two tasks, and no result depends on who does what."""

from __future__ import annotations

from typing import NamedTuple

from covey.models.native.words import Array, add_to, compiled, let_others_run, value_at

LINE = 8  # counters so far apart share none of the caches' lines
PATIENCE = 1 << 10  # looks at a counter before others may run


class Team(NamedTuple):
    """The place of one thread among those that run a pass."""

    counters: Array  # [stages, LINE * (threads + 1)], zero: of each thread's share, then of what is done
    thread: int
    threads: int


@compiled
def take(team, stage, count):
    """Take a task of `count` that nobody has taken; return -1 where there is none."""
    counters, thread, threads = team.counters, team.thread, team.threads
    row = counters.ctypes.data + stage * counters.strides[0]
    for other in range(threads):
        whose = (thread + other) % threads
        first, last = whose * count // threads, (whose + 1) * count // threads
        at = row + whose * LINE * 8
        if first + value_at(at) < last:
            task = first + add_to(at, 1)
            if task < last:
                return task
    return -1


@compiled
def finish(team, stage, count, mine):
    """Return when all of `count` tasks are done, `mine` of them by the caller."""
    at = team.counters.ctypes.data + stage * team.counters.strides[0] + team.threads * LINE * 8
    add_to(at, mine)
    looks = 0
    while value_at(at) < count:
        looks += 1
        if looks > PATIENCE:
            let_others_run()
