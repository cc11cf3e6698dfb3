"""Starts a service: waits for the target, finds the drafters and measures rounds.

It waits only briefly for drafters, since `covey.public_model.drafter_facts` reports late ones to the engine. It
measures after all models are loaded, as loading disturbs timings, and only until a request comes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping

from covey.contracts import profile
from covey.contracts.errors import CoveyError, Overloaded, PortError, StubDead
from covey.contracts.ports import Drafter
from covey.contracts.types import TargetInfo
from covey.loop.measure import Curves
from covey.planner.build import measured
from covey.process.private import kept_folder
from covey.public_model.build import Builder
from covey.public_model.drafter_facts import DrafterFacts, is_foreign
from covey.public_model.life import START_SECONDS, Life
from covey.public_model.service import Service
from covey.requests.roster import MOVED, Roster, State
from covey.supervision.control import HTTP_VARIABLE, LOADING, UNLOADED, Control
from covey_client.costs.table import CostTable

LOADED_SECONDS = 0.2  # between looks at whether all models are loaded
FACTS_SECONDS = 2.0  # longest wait for drafters
AGAIN_SECONDS = 0.1  # between questions to a target
log = logging.getLogger("covey.orchestrator")


class Start:
    """Asks the other models of one public model. Keeps nothing of what it finds."""

    def __init__(
        self,
        builder: Builder,
        drafter: Callable[[str], Drafter],
        facts: DrafterFacts,
        control: Control,
        life: Life,
        end: Callable[[str], None],
    ) -> None:
        """`end` ends the process of a model, unless the process is young."""
        self._builder, self._drafter, self._facts = builder, drafter, facts
        self._control, self._life, self._end = control, life, end

    def service(self) -> Service:
        """Return a service. Raises PortError if there is no target, and CoveyError for every other obstacle."""
        info = self._await_target()
        drafters, answered = self._find_drafters(info)
        costs = self._costs({name: drafters[name] for name in answered})
        if self._life.stopping.is_set():
            raise Overloaded("the server is stopping")
        service = self._builder.service(info, drafters, costs, self._drafter_failed, self._recover)
        self._note_unloaded(self._facts.join(service.engine, info), service.engine.roster)
        return service

    def _drafter_failed(self, roster: Roster, name: str, error: CoveyError) -> None:
        """Count the failure. If Triton considers the process dead, end it: Triton sends it no more calls, even if it
        was only starved for a second."""
        self._builder.metrics.drafter_failed(name)
        if isinstance(error, StubDead) and roster.state(name) not in MOVED:
            self._end(name)

    def _recover(self, error: PortError) -> None:
        log.warning("the target failed, loading it again: %s", error)
        self._end(self._facts.target)
        self._await_target()

    def _await_target(self) -> TargetInfo:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._builder.target.info()
            except PortError as error:
                if isinstance(error, StubDead):  # if it was too young at its first failure
                    self._end(self._facts.target)
                if self._life.stopping.wait(AGAIN_SECONDS) or time.monotonic() > deadline:
                    raise PortError(f"the target did not start: {error}") from None

    def _find_drafters(self, info: TargetInfo) -> tuple[dict[str, Drafter], list[str]]:
        """Return the profile's drafters, and the names of those that have answered. A silent drafter is kept, as it may
        answer later; one with another vocabulary than the target's is not."""
        names = self._builder.profile.speculation.drafters
        facts = self._facts.wait(names, FACTS_SECONDS)
        for name in set(names) - facts.keys():
            log.warning("starting without drafter %s: no answer within %g s", name, FACTS_SECONDS)
        foreign = {name for name, own in facts.items() if is_foreign(name, own, info)}
        ports = {name: self._drafter(name) for name in names if name not in foreign}
        return ports, [name for name in ports if name in facts]

    def _costs(self, drafters: Mapping[str, Drafter]) -> CostTable | None:
        """Return the costs of rounds with these drafters if a policy uses them: the profile's table, or measured
        ones."""
        made, speculation = self._builder, self._builder.profile.speculation
        names = measured(speculation, tuple(drafters)) if speculation.costs == profile.AUTO else ()
        if not names:
            return made.costs
        self._await_loaded()
        try:
            return self._curves(names).get()
        except Exception as error:  # any failure: the server works without them
            if not isinstance(error, PortError):
                log.exception("measuring failed")
            log.warning("starting without measured cost curves: %s", error)
            return None

    def _curves(self, names: Iterable[str]) -> Curves:
        made, drafters = self._builder, {name: self._drafter(name) for name in names}

        def go_on() -> bool:
            return not self._life.asked.is_set()

        folder = kept_folder("curves")
        return Curves(made.target, drafters, made.profile, made.clock, folder, go_on=go_on, caller=made.caller)

    def _note_unloaded(self, silent: Iterable[str], roster: Roster) -> None:
        """Note which silent drafters an earlier orchestrator unloaded."""
        silent = tuple(silent)
        try:
            states = self._control.states() if silent else {}
        except CoveyError as error:
            log.warning("cannot list the loaded drafters: %s", error)
            return
        for name in silent:
            if states.get(name) == UNLOADED:
                roster.moves(name, State.UNLOADED)

    def _await_loaded(self) -> None:
        """Wait until Triton reports over HTTP that all models are loaded, or a request comes. Without a launcher there
        is no address to ask, so do not wait."""
        deadline = time.monotonic() + START_SECONDS
        while HTTP_VARIABLE in os.environ and time.monotonic() < deadline and not self._all_loaded():
            if self._life.asked.wait(LOADED_SECONDS):
                return

    def _all_loaded(self) -> bool:
        """Return whether no model is being loaded. A failed load is handled later."""
        try:
            return LOADING not in self._control.states().values()
        except CoveyError:
            return False
