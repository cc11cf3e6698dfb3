"""A guard around what a server can do without: parts that only plan, learn or observe, whose failure must end nothing
else.

    plan = guard("planner", planner.plan, batch)      None from when the planner first raised: decode plainly
    guard("observer", observe, record)                from then on nothing is observed

A part that raised is never called again, as what it knows may be half changed. That is logged once, with where it
happened, and `covey_set_aside_total` counts it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

log = logging.getLogger("covey.guard")

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Guard:
    """Owns which parts are set aside. Any thread may call."""

    def __init__(self, *, strict: bool = False) -> None:
        """With `strict` nothing is set aside, and errors are raised: for tests and benches, whose numbers would be of
        another planner than they name."""
        self._strict = strict
        self._aside: dict[str, None] = {}

    def __call__(
        self, part: str, call: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result | None:
        """Return what the call returns; None where the part is set aside, which an error does."""
        if part in self._aside:
            return None
        try:
            return call(*given, **named)
        except Exception as error:
            if self._strict:
                raise
            self._aside[part] = None
            log.exception("%s failed and is set aside until this process ends: %r", part, error)
            return None

    def around(self, part: str, call: Callable[Given, Result]) -> Callable[Given, Result | None]:
        """Return the call as it is made through the guard."""

        def guarded(*given: Given.args, **named: Given.kwargs) -> Result | None:
            return self(part, call, *given, **named)

        return guarded

    @property
    def aside(self) -> tuple[str, ...]:
        """Return the parts that are set aside. Does not mutate."""
        return tuple(self._aside)

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value so far. Does not mutate."""
        for part in self.aside:
            yield "covey_set_aside_total", {"part": part}, 1.0
