"""A guard around optional parts of a server: parts that only plan, learn or observe must not break serving.

    plan = guard("planner", planner.plan, batch)      None after the planner raised once: decode plainly
    guard("observer", observe, record)                does nothing after the observer raised once

A part that raised is never called again, because its state may be half changed. The error is logged once with its
traceback, and `covey_set_aside_total` counts it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

log = logging.getLogger("covey.guard")

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Guard:
    """Owns the set of failed parts. Thread-safe."""

    def __init__(self, *, strict: bool = False) -> None:
        """With `strict` errors are raised. Tests and benches need this, or they would measure a fallback."""
        self._strict = strict
        self._aside: dict[str, None] = {}

    def __call__(
        self, part: str, call: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result | None:
        """Return the result of the call; None if the part fails now or failed before."""
        if part in self._aside:
            return None
        try:
            return call(*given, **named)
        except Exception as error:
            if self._strict:
                raise
            self._aside[part] = None
            log.exception("%s failed and stays off until this process restarts: %r", part, error)
            return None

    def around(self, part: str, call: Callable[Given, Result]) -> Callable[Given, Result | None]:
        """Return a function that makes the call through the guard."""

        def guarded(*given: Given.args, **named: Given.kwargs) -> Result | None:
            return self(part, call, *given, **named)

        return guarded

    @property
    def aside(self) -> tuple[str, ...]:
        """Return the failed parts. Does not mutate."""
        return tuple(self._aside)

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value so far. Does not mutate."""
        for part in self.aside:
            yield "covey_set_aside_total", {"part": part}, 1.0
