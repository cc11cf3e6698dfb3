"""Adds the names of requests to log lines: a line logged inside `about` ends with them.

A request has one name from the front to the target. The front draws it and sends it as the Triton request's id, and
messages that open a tag carry it on to the target and to drafters. A caller's own id is used if it is safe in a log;
else the name is the tag.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PARAMETER = "triton_request_id"  # of a Triton request that one model hands to another
MOST = 8  # names in a line
_SAFE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Names = Callable[[], Iterable[str]]
_names: ContextVar[Names] = ContextVar("names", default=tuple)


@contextmanager
def about(names: Names) -> Iterator[None]:
    """Add these requests' names to lines logged in this block. `names` is called only when a line is logged."""
    token = _names.set(names)
    try:
        yield
    finally:
        _names.reset(token)


def begin_drawn() -> str:
    """Draw a name for a new request, use it for the rest of this task, and return it."""
    name = uuid.uuid4().hex
    _names.set(lambda: (name,))
    return name


def current() -> Names:
    """Return the current names, for lines logged later or by another thread."""
    return _names.get()


def told(text: str) -> str:
    """Return the line with the names."""
    names = list(_names.get()())
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{text} [request {', '.join(names[:MOST])}{more}]" if names else text


def only() -> str:
    """Return the name of the current request; "" if there is none, or several."""
    names = list(_names.get()())
    return names[0] if len(names) == 1 else ""


def safe(name: object) -> str:
    """Return the caller's name of its request if it is safe in a log, else ""."""
    return name if isinstance(name, str) and _SAFE.fullmatch(name) else ""
