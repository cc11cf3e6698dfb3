"""How threads share the tasks of a stage. A thread takes its own share first, then tasks of the others. So none waits
for a thread that the system has paused between two tasks. Results do not depend on which thread does a task."""

from __future__ import annotations

from typing import NamedTuple

from covey.models.native.words import Array, add_to, compiled, let_others_run, value_at

LINE = 8  # counters this far apart share no cache line
PATIENCE = 1 << 10  # looks at a counter before the thread yields its processor


class Team(NamedTuple):
    """The place of one thread among those that run a pass."""

    counters: Array  # [stages, LINE * (threads + 1)], zero at first: tasks taken of each thread's share, then done
    thread: int
    threads: int
    stop: Array  # [1], 0 until nobody wants the result any more: then there are no more tasks


@compiled
def take(team, stage, count):
    """Take one of `count` tasks that no thread has taken yet. Return its index, or -1 if there is none."""
    if value_at(team.stop.ctypes.data):
        return -1
    counters, thread, threads = team.counters, team.thread, team.threads
    row = counters.ctypes.data + stage * counters.strides[0]
    for other in range(threads):
        whose = (thread + other) % threads
        first, last = first_of(whose, threads, count), first_of(whose + 1, threads, count)
        at = row + whose * LINE * 8
        if first + value_at(at) < last:
            task = first + add_to(at, 1)
            if task < last:
                return task
    return -1


@compiled
def first_of(thread, threads, count):
    """Return the first task of a thread's share."""
    return thread * count // threads


@compiled
def finish(team, stage, count, mine):
    """Add `mine` tasks that the caller has done. Return when all of `count` tasks are done, or none is wanted."""
    at = team.counters.ctypes.data + stage * team.counters.strides[0] + team.threads * LINE * 8
    add_to(at, mine)
    looks = 0
    while value_at(at) < count and not value_at(team.stop.ctypes.data):
        looks += 1
        if looks > PATIENCE:
            let_others_run()
