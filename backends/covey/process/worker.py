"""A thread that runs calls one after the other, and that nobody has to wait for: for calls that may never return."""

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
        """The call is made after those before it."""
        ...

    def close(self) -> None:
        """Take no more calls; those that were taken are made."""
        ...


class Thread:
    """Implements `Worker`. Starts with its first call, and ends when nobody holds this any more. A process ends without
    waiting for what this is stuck in, which it would for a `ThreadPoolExecutor`'s thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None)

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        future: Future[R] = Future()
        context = copy_context()  # what the call logs is about the same requests
        self._calls.put((future, lambda given: context.run(call, given), argument))
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._name, self._calls), name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        self._calls.put(None)


def _run(name: str, calls: Calls) -> None:
    with contextlib.suppress(OSError):  # a name is for whoever looks
        NAME.write_text(name)  # the system's own, which threads that this one starts take over
    while _one(calls):
        pass


def _one(calls: Calls) -> bool:
    """Make one call; return False at the end. In a frame of its own: a thread that waits holds nothing of the last."""
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
