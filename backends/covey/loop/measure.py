"""Measurement of what rounds take, before anybody is served, so that the planner's first choices rest on something.

    known = Curves(target, drafters, profile, clock, folder).get()

The rounds are the engine's own, over the ports that it will serve with: rows of random prompts, drafts of a few depths.
Plain rounds follow each other as in serving, so that what the target computes ahead of its time is in their timings.
An emulated device is measured as any other: what its table says is for it to know and for a planner to find out.
Whoever asks for something ends the measuring: the table then has what was seen by then.

Tables are kept by the identity of target and drafters (`covey.contracts.types`) and by what the profile allows: with
the same weights on the same machine a start does not measure again.
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

VERSION = 2  # changes when other things are measured, or in another way


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
        """`folder` keeps tables, None nothing. Measuring ends early where `go_on` says so. `caller` is the name of the
        engine that will serve."""
        self._target, self._drafters, self._profile = target, dict(drafters), profile
        self._clock, self._folder, self._go_on, self._caller = clock, folder, go_on, caller

    def get(self) -> CostTable:
        """Raises PortError where the target or the first drafter cannot say who they are."""
        who = self._who()
        path = self._path(who)
        kept = _kept(path) if path is not None else None
        if kept is not None:
            log.info("cost curves as %s has them: %s", path, kept.origin)
            return kept
        table, ended, steady = self._measured(who, path.stem if path is not None else "measured")
        if not ended:
            log.warning("measuring was cut short by a request or a failure: these curves are not kept")
        elif not steady:
            log.warning("this machine did other work while curves were measured: they are not kept")
        elif path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                table.save(path)
            except OSError as error:
                log.warning("cost curves cannot be kept in %s, every start will measure them: %s", path, error)
        return table

    def _measured(self, who: Iterable[str], name: str) -> tuple[CostTable, bool, bool]:
        """Return the table of that name, whether measuring came to its end, and whether the machine was steady."""
        started = self._clock.now()
        drafters = {each: self._drafters[each] for each in who}
        bench = Bench(self._target, drafters, self._profile, self._clock, self._caller)
        ended = bench.run(self._go_on)
        seconds = self._clock.now() - started
        table = bench.samples.table(
            name,
            f"Measured by the server, {time.strftime('%Y-%m-%d')}, in {seconds:.1f} s: {self._target.info().model}. "
            "Medians; seconds as the round loop sees them, the way to the models and back included.",
        )
        log.info("cost curves measured in %.1f s: %s", seconds, _shown(table))
        return table, ended, bench.steady

    def _who(self) -> dict[str, str]:
        """Return identities by drafter. One that does not answer is left out; raises PortError if it is the first."""
        who: dict[str, str] = {}
        for name, drafter in self._drafters.items():
            try:
                who[name] = drafter.info().identity
            except PortError as error:
                if not who:
                    raise
                log.warning("what %s takes is not measured: %s", name, error)
        return who

    def _path(self, who: Mapping[str, str]) -> Path | None:
        """Return the file of the curves; None where nothing can be kept, or where the target or a drafter has no
        identity."""
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
            raise SettingError(f"cost table {path}: it is another deployment's, {table.name}")
    except SettingError as error:
        log.warning("kept cost curves are ignored and measured again: %s", error)
        return None
    return table


def _shown(table: CostTable) -> str:
    """Return in words what plain rounds took, which every choice is weighed against."""
    plain = ", ".join(f"{rows} row(s) {1000 * seconds:.1f} ms" for rows, seconds in table.plain)
    return f"plain rounds of {plain}" if plain else "nothing was seen"
