"""A thread that runs calls one after another. Calls may hang, since the process need not wait for the thread."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

A = TypeVar("A")
R = TypeVar("R")
Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[Any], Any], Any] | None]"
NAME = Path("/proc/thread-self/comm")


class Worker(Protocol):
    """Runs calls."""

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        """Queue a call; calls run in order."""
        ...

    def close(self) -> None:
        """Accept no more calls; queued calls still run."""
        ...


class Thread:
    """Implements `Worker`. The thread starts with the first call and ends after this object is collected. Unlike a
    `ThreadPoolExecutor`'s thread, it does not keep the process alive if it hangs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None)

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        future: Future[R] = Future()
        context = copy_context()  # log lines of the call name the same requests
        self._calls.put((future, lambda given: context.run(call, given), argument))
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._name, self._calls), name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        self._calls.put(None)


def _run(name: str, calls: Calls) -> None:
    with contextlib.suppress(OSError):  # the name only helps debugging
        NAME.write_text(name)  # the system's name, which child threads inherit
    while _one(calls):
        pass


def _one(calls: Calls) -> bool:
    """Make one call; return False at the end. This is a separate frame, so a waiting thread keeps no references to the
    last call."""
    waiting = calls.get()
    if waiting is None:
        return False
    future, call, argument = waiting
    try:
        result = call(argument)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return True
