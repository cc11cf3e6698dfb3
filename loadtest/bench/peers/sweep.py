"""From which acceptance on drafting pays: aligned pairs that agree more and less, each behind Triton, by callers."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from loadtest.bench import workload
from loadtest.bench.derive import with_drafters
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.peers.comparison import CALLERS, QUICK_CALLERS, QUICK_TOKENS, REQUESTS, TOKENS
from loadtest.bench.peers.line_up import Pair
from loadtest.bench.peers.measured import HOT, acceptance_of, compared
from loadtest.bench.policies import COVEY, OFF, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.work import Run

DEPTHS = (1, 2, 4, 6)
REPETITIONS, FULL_REPETITIONS = 4, 12


@dataclass
class Swept:
    """Runs at temperature 1 by pair, callers and choice, in the order of turns."""

    runs: dict[str, dict[int, dict[str, list[Run]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )

    def summary(self) -> JsonDict:
        """By pair: its acceptance, and by callers the best fixed depth and the policy over no drafts. And at which
        acceptance both break even."""
        pairs: JsonDict = {}
        for name, by_callers in self.runs.items():
            acceptance = acceptance_of(
                (choice, runs) for by_choice in by_callers.values() for choice, runs in by_choice.items()
            )
            points = {str(callers): _gains(by_choice) for callers, by_choice in sorted(by_callers.items())}
            pairs[name] = {"acceptance": acceptance, "points": points}
        return {"sweep": {"pairs": pairs, "breaks_even": {kind: _break_even(pairs, kind) for kind in ("fixed", COVEY)}}}


def sweep(session: Session, swept: Swept) -> None:
    """Every pair has the same share of the time, and a server of its own."""
    folders = session.wanted.pairs
    if len(folders) < 2:
        raise SettingError("--part sweep: name two or more aligned pairs' folders, each by --pair")
    quick = session.wanted.size == QUICK
    for index, folder in enumerate(folders):
        pair = Pair.of(session, folder)
        with ExitStack() as stack:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            path = with_drafters(pair.settings, made / "sweep.toml", (pair.drafter,), policy=COVEY)
            server = stack.enter_context(session.server(replace(session.wanted.options(), profile=str(path))))
            choices = {OFF: {"speculation": OFF}, **{fixed(k): {"speculation": fixed(k)} for k in DEPTHS}, COVEY: {}}
            asked = [OverTriton(server, name, stream=True, settings=given) for name, given in choices.items()]
            for each in asked:
                stack.callback(each.close)
            for turn in range(session.repetitions(REPETITIONS, FULL_REPETITIONS) + 1):  # the first warms up
                if turn > 1 and session.out_of_time((index + 1) / len(folders)):
                    break
                steps = [
                    (c, one) for c in (QUICK_CALLERS if quick else CALLERS) for one in workload.shuffled(asked, turn, c)
                ]
                labels = [f"{Path(folder).name}, turn {turn}: {one.name} at {c}" for c, one in steps]
                for (callers, one), _ in zip(steps, session.steps(labels)):
                    asks = pair.asks(REQUESTS[callers], QUICK_TOKENS if quick else TOKENS, HOT, turn)
                    done = one.run(asks, callers, tenant=f"{turn} {one.name} {callers}")
                    if turn:
                        swept.runs[Path(folder).name][callers][one.name].append(done)


def _gains(runs: Mapping[str, Sequence[Run]]) -> JsonDict:
    whole = min(len(done) for done in runs.values())
    rates = {name: [run.rate for run in done[:whole]] for name, done in runs.items()}
    depths = {name: values for name, values in rates.items() if name not in (OFF, COVEY)}
    return {
        kind: compared(ours, {OFF: rates[OFF]}) for kind, ours in (("fixed", depths), (COVEY, {COVEY: rates[COVEY]}))
    }


def _break_even(pairs: JsonDict, kind: str) -> JsonDict:
    """By callers, on a line between the pairs on both sides of it; null where all are on one."""
    found: JsonDict = {}
    known = sorted((p for p in pairs.values() if p["acceptance"] is not None), key=lambda p: p["acceptance"])
    for callers in known[0]["points"] if known else ():
        points = [(p["acceptance"], p["points"][callers][kind]["median"]) for p in known if p["points"][callers][kind]]
        found[callers] = next(
            (a + (1 - low) / (high - low) * (b - a) for (a, low), (b, high) in pairwise(points) if low < 1 <= high),
            None,
        )
    return found
