"""Which requests a log line is about: what is logged inside `about` names them at its end.

One request has one name from the front to the target: the front draws it and sends it as the Triton request's id,
messages to the target and to drafters open a tag with it. A caller's own id is taken where it can do a log no harm;
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
    """Have what is logged name these requests; `names` is called where something is logged, and nowhere else."""
    token = _names.set(names)
    try:
        yield
    finally:
        _names.reset(token)


def begin_drawn() -> str:
    """Have all that follows in this task be about a new request; return its name, which is drawn."""
    name = uuid.uuid4().hex
    _names.set(lambda: (name,))
    return name


def current() -> Names:
    """Return what `about` was told last, for what is logged later or by another thread."""
    return _names.get()


def told(text: str) -> str:
    """Return the line with the names."""
    names = list(_names.get()())
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{text} [request {', '.join(names[:MOST])}{more}]" if names else text


def only() -> str:
    """Return the request that this is about; "" where it is about none, or several."""
    names = list(_names.get()())
    return names[0] if len(names) == 1 else ""


def safe(name: object) -> str:
    """Return what a caller calls its request, where it may stand in a log; else ""."""
    return name if isinstance(name, str) and _SAFE.fullmatch(name) else ""
