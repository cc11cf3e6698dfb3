"""Takes turns: everybody once at every number of callers, greedily and at temperature 1, in an order drawn anew each
time.

Before them every depth is tried at every number of callers, and the best of each drafting system over all callers takes
part in the turns: more depths than that would leave time for few turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from covey.contracts.errors import CoveyError
from loadtest.bench import workload
from loadtest.bench.peers.asked import DEPTHS, OverPipe, named
from loadtest.bench.peers.line_up import Cast
from loadtest.bench.peers.measured import ALONE, GREEDY, HOT, SERVER_OFF, STAGES, STREAMED, PeerRuns
from loadtest.bench.policies import COVEY, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.work import Competitor

CALLERS, QUICK_CALLERS = (1, 4, 16), (1, 4)
REQUESTS = {1: 2, 4: 4, 16: 16}  # of one run
TOKENS, QUICK_TOKENS = 48, 12
QUICK_DEPTHS = (3,)
REPETITIONS, FULL_REPETITIONS = 12, 40
TRIALS = 2  # of each depth: the first compiles what the second uses
TRIAL_SHARE = 0.4  # of the time


class Comparison:
    """Owns who takes part where; what it measures goes into `measured` turn by turn."""

    def __init__(self, session: Session, measured: PeerRuns, cast: Cast) -> None:
        self._session, self._measured, self._cast = session, measured, cast
        quick = session.wanted.size == QUICK
        self._callers = QUICK_CALLERS if quick else CALLERS
        self._depths = QUICK_DEPTHS if quick else DEPTHS
        self._tokens = QUICK_TOKENS if quick else TOKENS
        self._failures: dict[str, str] = {}
        session.notes["failures"] = self._failures
        self._entrants: dict[int, list[Competitor]] = {each: cast.plain() for each in self._callers}

    def invite(self) -> None:
        """Have Covey's policy take part beside plain decoding, and of Covey and every peer the depth that does best in
        a trial."""
        self._try(COVEY, lambda depth: self._cast.covey(fixed(depth)))
        for peer in self._cast.peers.values():
            self._try(peer.name, peer.at, peer.keep)
            for entrants in self._entrants.values():
                entrants.append(peer.at(0))
        for entrants in self._entrants.values():
            entrants.append(self._cast.covey(COVEY))

    def warm_up(self) -> None:
        """Have everybody answer once at every number of callers."""
        steps = [
            (f"warming up: {one.name} at {each}", (each, one)) for each in self._callers for one in self._entrants[each]
        ]
        for each, one in self._session.each(steps):
            self._run(one, GREEDY, each, 0, "warm-up")

    def turns(self) -> None:
        """Take turns until the time is up."""
        session = self._session
        for turn in range(session.repetitions(REPETITIONS, FULL_REPETITIONS)):
            if turn and session.out_of_time():
                break
            self._turn(turn)
            session.notes["turns"] = turn + 1

    def _turn(self, turn: int) -> None:
        session, measured = self._session, self._measured
        seed = session.wanted.seed * 1000 + turn
        steps = [
            (f"turn {turn + 1}: {one.name} at {each}, temperature {temperature:g}", (temperature, each, one))
            for temperature in (GREEDY, HOT)
            for each in self._callers
            for one in workload.shuffled(self._entrants[each], seed, each, int(temperature))
        ]
        stages = self._cast.limits(self._callers)
        for temperature, each, one in session.each(steps):
            if turn and session.out_of_time():
                return
            self._run(one, temperature, each, seed, f"{turn}", stages[each])
        for each, found in stages.items():
            if found.keys() >= STAGES.keys():
                measured.stages[each].append(found)

    def _run(
        self,
        one: Competitor,
        temperature: float,
        callers: int,
        seed: int,
        tenant: str,
        stages: dict[str, float] | None = None,
    ) -> None:
        """Have one competitor answer. The run counts where there are stages to fill; who fails takes part no longer."""
        asks = self._cast.pair.asks(REQUESTS[callers], self._tokens, temperature, seed)
        tenant = f"{tenant} {one.name} {callers} {temperature}"  # finds nothing of others in any cache
        try:
            if one.name == SERVER_OFF + STREAMED and temperature == GREEDY:
                done, seen = self._cast.watched(callers, asks, tenant)
            else:
                done, seen = one.run(asks, callers, tenant=tenant), {}
        except CoveyError as error:
            self._failed(one.name, error)
            for entrants in self._entrants.values():
                entrants[:] = [each for each in entrants if each.name != one.name]
            return
        if stages is None:
            return
        if one.name == ALONE and temperature == GREEDY and isinstance(one, OverPipe) and one.said["pass_ms"]:
            seen = {"step": one.said["pass_ms"]}
        stages |= seen
        self._measured.runs[temperature, callers][one.name].append(done)

    def _try(
        self,
        name: str,
        at: Callable[[int], Competitor],
        keep: Callable[[Collection[int]], None] = lambda _depths: None,
    ) -> None:
        """Have the depth take part that brings most tokens a second over all numbers of callers, as far as there is
        time for trials. `keep` ends processes of other depths: memory may be for a single one."""
        found: dict[int, dict[int, float]] = {each: {} for each in self._callers}
        for depth in self._session.each([(f"trying {name} at depth {depth}", depth) for depth in self._depths]):
            if found[self._callers[0]] and self._session.out_of_time(TRIAL_SHARE):
                break
            keep((0, depth))
            try:
                for each in self._callers:
                    asks = self._cast.pair.asks(REQUESTS[each], self._tokens, GREEDY, self._session.wanted.seed)
                    tenants = [f"trial {trial} {depth} {each}" for trial in range(TRIALS)]
                    found[each][depth] = max(at(depth).run(asks, each, tenant=tenant).rate for tenant in tenants)
            except CoveyError as error:
                self._failed(named(name, depth), error)
        tried = [depth for depth in self._depths if all(depth in by for by in found.values())]
        best = max(tried, key=lambda depth: math.prod(by[depth] for by in found.values()), default=0)
        keep((0, best))
        for entrants in self._entrants.values():
            entrants += [at(best)] if best else []
        self._session.notes.setdefault("tried", {})[name] = {
            str(each): {str(depth): rate for depth, rate in sorted(by.items())} for each, by in found.items()
        }

    def _failed(self, name: str, error: CoveyError) -> None:
        self._failures[name] = str(error)[:500]
        self._session.console.print(f"{name}: {error}", style="red", markup=False)
