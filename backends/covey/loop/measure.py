"""Measures what rounds take before the first request, so that the planner starts from measured costs.

    known = Curves(target, drafters, profile, clock, folder).get()

The engine itself runs these rounds over the serving ports: rows of random prompts, drafted to a few depths. Plain
rounds follow each other as in serving, so their times include the target's work ahead. Emulated devices are measured
like any other, never read from their tables. A request ends the measuring; the table then has the samples so far.

Tables are kept by the identities of target and drafters (`covey.contracts.types`) and the profile's limits. A restart
with the same weights on the same machine does not measure again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from covey.contracts.errors import PortError, SettingError
from covey.contracts.ports import Clock, Drafter, Target
from covey.contracts.profile import Profile
from covey.loop.measure_rounds import PROMPT, ROOM, Bench
from covey.planner.cost_table import load_costs
from covey_client.costs.table import CostTable

log = logging.getLogger("covey.measure")

VERSION = 2  # changes with what is measured, and how


class Curves:
    """The cost table of one deployment: kept from an earlier start, or measured now."""

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        profile: Profile,
        clock: Clock,
        folder: Path | None,
        *,
        go_on: Callable[[], bool] = lambda: True,
        caller: str = "",
    ) -> None:
        """Tables are kept in `folder`, if given. Measuring stops when `go_on` returns False. `caller` is the name of
        the engine that will serve."""
        self._target, self._drafters, self._profile = target, dict(drafters), profile
        self._clock, self._folder, self._go_on, self._caller = clock, folder, go_on, caller

    def get(self) -> CostTable:
        """Return the table. Raises PortError if the target or the first drafter cannot give its identity."""
        who = self._who()
        path = self._path(who)
        kept = _kept(path) if path is not None else None
        if kept is not None:
            log.info("using the cost curves kept in %s: %s", path, kept.origin)
            return kept
        table, ended, steady = self._measured(who, path.stem if path is not None else "measured")
        if not ended:
            log.warning("measuring was cut short by a request or a failure: these cost curves are not kept")
        elif not steady:
            log.warning("the machine was busy with other work while measuring: these cost curves are not kept")
        elif path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                table.save(path)
            except OSError as error:
                log.warning("cannot keep cost curves in %s, every start will measure them: %s", path, error)
        return table

    def _measured(self, who: Iterable[str], name: str) -> tuple[CostTable, bool, bool]:
        """Return the table of that name, whether measuring was complete, and whether the machine was steady."""
        started = self._clock.now()
        drafters = {each: self._drafters[each] for each in who}
        bench = Bench(self._target, drafters, self._profile, self._clock, self._caller)
        ended = bench.run(self._go_on)
        seconds = self._clock.now() - started
        table = bench.samples.table(
            name,
            f"Measured by the server, {time.strftime('%Y-%m-%d')}, in {seconds:.1f} s: {self._target.info().model}. "
            "Medians; seconds as the round loop sees them, transport to the models and back included.",
        )
        log.info("cost curves measured in %.1f s: %s", seconds, _shown(table))
        return table, ended, bench.steady

    def _who(self) -> dict[str, str]:
        """Return identities by drafter. Leaves out a drafter that does not answer; raises PortError if it is the
        first."""
        who: dict[str, str] = {}
        for name, drafter in self._drafters.items():
            try:
                who[name] = drafter.info().identity
            except PortError as error:
                if not who:
                    raise
                log.warning("cannot measure drafter %s: %s", name, error)
        return who

    def _path(self, who: Mapping[str, str]) -> Path | None:
        """Return the file of the curves; None if there is no folder, or the target or a drafter has no identity."""
        speculation, scheduler = self._profile.speculation, self._profile.scheduler
        info = self._target.info()
        identities = [("target", info.identity), *who.items()]
        if self._folder is None or not all(identity for _, identity in identities):
            return None
        rows = min(scheduler.max_running, info.total_blocks * info.block_size // (PROMPT + ROOM))
        limits = [VERSION, speculation.max_depth, rows, scheduler.token_budget]
        digest = hashlib.sha256(json.dumps([limits, identities]).encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"


def _kept(path: Path) -> CostTable | None:
    if not path.exists():
        return None
    try:
        table = load_costs(path)
        if table.name != path.stem:
            raise SettingError(f"cost table {path} belongs to another deployment, {table.name}")
    except SettingError as error:
        log.warning("ignoring the kept cost curves and measuring again: %s", error)
        return None
    return table


def _shown(table: CostTable) -> str:
    """Return the times of plain rounds in words, for the log."""
    plain = ", ".join(f"{rows} row(s) {1000 * seconds:.1f} ms" for rows, seconds in table.plain)
    return f"plain rounds of {plain}" if plain else "no rounds measured"
