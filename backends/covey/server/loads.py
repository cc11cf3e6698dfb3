"""Ends models' processes that load for far too long, as one does that spins in its `initialize`: whoever asked for the
load is told that it failed, and tries again.

Triton waits for ever for a process that is loading, and so does all that is asked of the model meanwhile. A process
that has ended it notices within seconds, unless it ended before it had said anything: such a load it waits for beyond
every timeout. Without a drafter requests are served; without another model they are not, and then the server is ended
and started again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from covey.server import processes
from covey.server.control import Control
from covey.starved import Starved

LOOK_SECONDS = 0.5
TIMES, LEAST_SECONDS = 5.0, 10.0  # a load may take so many times what the last one of its model took, and so long
DEAD_SECONDS = 10.0  # for Triton to notice that the process it waits for has ended
log = logging.getLogger("covey.loads")


@dataclass
class _Load:
    """One under way; seconds are of looks, in which the process had a processor when it wanted one."""

    starved: Starved
    seconds: float = 0.0
    without: float = 0.0  # a process
    ended: bool = False


class Loads:
    """Owns how long each model of one server has been loading, and how long its last load took. Looked at by one
    thread."""

    def __init__(
        self, control: Control, server: int, took: Mapping[str, float], spared: Collection[str], unknown: float
    ) -> None:
        """`took` is what loads took when the server started, `unknown` how long one may take that never did. For the
        `spared` the server is not ended."""
        self._control, self._server, self._spared = control, server, spared
        self._took, self._unknown = dict(took), unknown
        self._patience: dict[str, float] = {}  # times; twice as much after each load that was ended
        self._under_way: dict[str, _Load] = {}

    def look(self) -> None:
        """Called every LOOK_SECONDS. Raises ControlError where the server does not say who loads."""
        states = self._control.states()
        for model in [model for model in self._under_way if states.get(model) != "LOADING"]:
            load = self._under_way.pop(model)
            if states.get(model) == "READY":
                self._took[model] = load.seconds
                self._patience.pop(model, None)
        loading = [model for model, state in states.items() if state == "LOADING"]
        running = processes.by_model(self._server) if loading else {}
        for model in loading:
            load = self._under_way.setdefault(model, _Load(Starved()))
            living = running.get(model, [])
            load.seconds += load.starved.counted(living, LOOK_SECONDS)
            load.without = 0.0 if living else load.without + LOOK_SECONDS
            if living and load.seconds > self._bound(model) and not load.ended:
                load.ended = True
                log.warning("%s has been loading for %.1f s and its process is ended", model, load.seconds)
                self._patience[model] = 2 * self._patience.get(model, TIMES)
                processes.end(living)
            elif load.without == DEAD_SECONDS:
                self._overlooked(model)

    def _bound(self, model: str) -> float:
        if model not in self._took:
            return self._unknown
        times = self._patience.get(model, TIMES)
        return max(LEAST_SECONDS * times / TIMES, times * self._took[model])

    def _overlooked(self, model: str) -> None:
        what = "the server waits for it for ever" if model in self._spared else "the server is started again"
        log.warning("%s: its process ended while it was loading, and %s", model, what)
        if model not in self._spared:
            processes.end([self._server])
