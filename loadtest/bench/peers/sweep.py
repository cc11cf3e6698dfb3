"""Measures from which acceptance on drafting pays: aligned pairs that agree more and less, each behind Triton, by
callers."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from loadtest.bench import workload
from loadtest.bench.derive import with_drafters
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.peers.asked import ours
from loadtest.bench.peers.comparison import CALLERS, QUICK_CALLERS, QUICK_TOKENS, REQUESTS, TOKENS
from loadtest.bench.peers.line_up import Pair, costs_of
from loadtest.bench.peers.measured import GREEDY, HOT, TEMPERATURES, acceptance_of, bound_of, compared
from loadtest.bench.policies import COVEY, OFF, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.work import Run

DEPTHS = (1, 2, 4, 6)
REPETITIONS, FULL_REPETITIONS = 4, 12


@dataclass
class Swept:
    """Holds runs by temperature, pair, callers and choice, in the order of turns; and what a pass and a level take."""

    runs: dict[float, dict[str, dict[int, dict[str, list[Run]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    )
    costs: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)  # pair, callers -> by depth

    def summary(self) -> JsonDict:
        """Return by temperature and pair its acceptance, and by callers the best fixed depth and the policy over no
        drafts, and what acceptance and costs allow; and at which acceptance both break even."""
        found: JsonDict = {}
        for label, temperature in TEMPERATURES.items():
            pairs = {name: self._pair(name, by_callers) for name, by_callers in self.runs[temperature].items()}
            found[label] = {
                "pairs": pairs,
                "breaks_even": {kind: _break_even(pairs, kind) for kind in ("fixed", COVEY)},
            }
        return {"sweep": found}

    def _pair(self, name: str, by_callers: Mapping[int, Mapping[str, Sequence[Run]]]) -> JsonDict:
        acceptance = acceptance_of(
            (choice, runs) for by_choice in by_callers.values() for choice, runs in by_choice.items()
        )
        points: JsonDict = {}
        for callers, by_choice in sorted(by_callers.items()):
            costs = self.costs.get((name, callers))
            bound = None if acceptance is None or costs is None else bound_of(acceptance, costs)
            points[str(callers)] = {
                **_gains(by_choice),
                "bound": bound and {"over_plain": bound[0], "depth": bound[1]},
                "pass_and_level_ms": costs,
            }
        return {"acceptance": acceptance, "points": points}


def sweep(session: Session, swept: Swept) -> None:
    """Measure every pair, each with the same share of the time and a server of its own."""
    folders = session.wanted.pairs
    if len(folders) < 2:
        raise SettingError("--part sweep: name two or more aligned pairs' folders, each by --pair")
    for index, folder in enumerate(folders):
        _turns(session, swept, folder, (index + 1) / len(folders))


def _turns(session: Session, swept: Swept, folder: str, share: float) -> None:
    """Take one pair's turns, until so much of the time is up."""
    quick, name, pair = session.wanted.size == QUICK, Path(folder).name, Pair.of(session, folder)
    for callers, costs in _costs(session, pair).items():
        swept.costs[name, callers] = costs
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = with_drafters(pair.settings, made / "sweep.toml", (pair.drafter,), policy=COVEY)
        server = stack.enter_context(session.server(session.wanted.options(path)))
        choices = {OFF: {"speculation": OFF}, **{fixed(k): {"speculation": fixed(k)} for k in DEPTHS}, COVEY: {}}
        asked = [OverTriton(server, name, stream=True, settings=given) for name, given in choices.items()]
        for each in asked:
            stack.callback(each.close)
        for turn in range(session.repetitions(REPETITIONS, FULL_REPETITIONS) + 1):  # the first warms up
            steps = [
                (f"{name}, turn {turn}: {one.name} at {c}, temperature {hot:g}", (hot, c, one))
                for hot in ((GREEDY, HOT) if turn else (HOT,))
                for c in (QUICK_CALLERS if quick else CALLERS)
                for one in workload.shuffled(asked, turn, c)
            ]
            for hot, callers, one in session.each(steps):
                if turn > 1 and session.out_of_time(share):
                    return
                asks = pair.asks(REQUESTS[callers], QUICK_TOKENS if quick else TOKENS, hot, turn)
                done = one.run(asks, callers, tenant=f"{turn} {one.name} {callers} {hot:g}")
                if turn:
                    swept.runs[hot][name][callers][one.name].append(done)


def _costs(session: Session, pair: Pair) -> dict[int, list[tuple[float, float]]]:
    """Return by callers what `bound_of` reckons with, measured before anything else runs."""
    with session.status("timing single passes"):
        timed, _ = ours(
            "single passes", "timed", target=pair.target, drafter=pair.drafter_folder, profile_name=pair.profile_name
        )
        with closing(timed):
            callers = QUICK_CALLERS if session.wanted.size == QUICK else CALLERS
            return {each: costs_of(timed, each, max(DEPTHS)) for each in callers}


def _gains(runs: Mapping[str, Sequence[Run]]) -> JsonDict:
    whole = min(len(done) for done in runs.values())
    rates = {name: [run.rate for run in done[:whole]] for name, done in runs.items()}
    depths = {name: values for name, values in rates.items() if name not in (OFF, COVEY)}
    return {
        kind: compared(ours, {OFF: rates[OFF]}) for kind, ours in (("fixed", depths), (COVEY, {COVEY: rates[COVEY]}))
    }


def _break_even(pairs: JsonDict, kind: str) -> JsonDict:
    """Return by callers where drafting breaks even, on a line between the pairs on both sides of it; null where all are
    on one."""
    found: JsonDict = {}
    known = sorted((p for p in pairs.values() if p["acceptance"] is not None), key=lambda p: p["acceptance"])
    for callers in known[0]["points"] if known else ():
        points = [(p["acceptance"], p["points"][callers][kind]["median"]) for p in known if p["points"][callers][kind]]
        found[callers] = next(
            (a + (1 - low) / (high - low) * (b - a) for (a, low), (b, high) in pairwise(points) if low < 1 <= high),
            None,
        )
    return found
