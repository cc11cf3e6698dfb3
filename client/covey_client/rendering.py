"""Renders an untrusted template within bounds of memory and of processor time.

A sandbox keeps a template from the machine, but not from `{{ 'a' * 10 ** 10 }}`, a filter that pads by as much, or
nested loops. The kernel bounds them all.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covey_client.errors import InvalidRequest

MEMORY_BYTES = 512 << 20  # beyond what the process has; real templates take a few times what they write
SECONDS = 2  # of processor time; real templates take milliseconds for a hundred messages
TOO_LARGE = f"template: it takes more than {MEMORY_BYTES >> 20} MiB of memory"
KILLED = -signal.SIGVTALRM  # the exit status of a process that the kernel ended in `bounded`


def too_long(seconds: float) -> str:
    """Return the message for a template that takes more than this processor time."""
    return f"template: it takes longer than {seconds:g} s"


class _Late(BaseException):
    """Raised when time is up; no `except Exception` of a library catches it."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Bound the rendering of a template; use it in the main thread of a separate process. Raises InvalidRequest. A
    single long call into C cannot be interrupted: the kernel ends the process at twice the time."""
    import resource  # some clients' systems lack this module

    space = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_held_bytes() + MEMORY_BYTES, space[1]))
    before = signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except MemoryError:
        raise InvalidRequest(TOO_LARGE) from None
    except _Late:
        raise InvalidRequest(too_long(seconds)) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, space)


def _late(_number: int, _frame: object) -> None:
    raise _Late


def _held_bytes() -> int:
    import resource

    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
