"""Shows how far a long command is: a bar on a terminal; lines elsewhere, as in a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

LINE_SECONDS = 5.0  # between the lines of quick steps


class Steps(Progress):
    """Progress that also works without a terminal: a line for each step, at least `apart` seconds after the last."""

    def __init__(self, console: Console | None = None, *, apart: float = 0.0) -> None:
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._apart, self._due = apart, 0.0

    def update(self, task_id: TaskID, *args: Any, **fields: Any) -> None:
        super().update(task_id, *args, **fields)
        self._tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        if self.console.is_terminal or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._apart
        task = self._tasks[task_id]
        self.console.print(
            f"{task.description}: {task.percentage:.0f} %, {task.elapsed or 0:.0f} s",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )


@contextmanager
def status(console: Console, doing: str) -> Iterator[None]:
    """Show the current work: a spinner on a terminal, a line elsewhere."""
    if not console.is_terminal:
        console.print(doing, soft_wrap=True, highlight=False, markup=False)
    with console.status(doing):
        yield
