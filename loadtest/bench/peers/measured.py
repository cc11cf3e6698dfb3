"""Holds what was measured, turn by turn, and makes the JSON's keys of it. Asks nobody.

Every ratio is of one turn, whose runs are minutes apart at most: a host that changes its speed changes both. Of several
choices the best is picked on odd turns and compared on even ones, then the other way round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from covey.contracts.types import JsonDict
from loadtest.bench import report
from loadtest.bench.peers.asked import OPENVINO, VLLM, named
from loadtest.bench.policies import COVEY, OFF
from loadtest.bench.statistics import best_over, interval, ratios
from loadtest.bench.work import Run

GREEDY, HOT = 0.0, 1.0
TEMPERATURES = {"greedy": GREEDY, "t1": HOT}
ALONE, SERVER = "alone", "server"  # Covey in a process, and behind Triton
SERVER_OFF, SERVER_COVEY = f"{SERVER} {OFF}", f"{SERVER} {COVEY}"
STREAMED = ", streamed"  # ends a name; all others answer as a whole
STAGES = {  # of a token's way, by what is left to come after; milliseconds of one round
    "reading": "the weights, read once",
    "products": "bare products",
    "pass": "the pass alone",
    "step": "with sampling",
    "served": "the same in the target's process",
    "round": "with the loop and BLS",
    "client": "at the client",
}

Rates = dict[str, list[float]]


@dataclass
class PeerRuns:
    """Holds runs by temperature, callers and name, and stages by callers, in the order of turns."""

    runs: dict[tuple[float, int], dict[str, list[Run]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    stages: dict[int, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        found: JsonDict = {}
        for suffix, temperature in (("", GREEDY), ("_t1", HOT)):
            for peer in (OPENVINO, VLLM):
                found |= {f"{key}_{peer}{suffix}": value for key, value in self._over(peer, temperature).items()}
        return found | {
            "limit_share": self._stage_ratios(_limit, "pass"),
            "pass_in_server_over_alone": self._stage_ratios(lambda turn: turn["served"], "step"),
            "tokens_per_second": {label: self._spreads(t) for label, t in TEMPERATURES.items()},
            "waterfall_ms": {
                str(callers): {stage: median(turn[stage] for turn in turns) for stage in STAGES}
                for callers, turns in sorted(self.stages.items())
            },
        }

    def _over(self, peer: str, temperature: float) -> JsonDict:
        """Return ratios over a peer by key and callers. At temperature 1 drafts of OpenVINO's change what is drawn, so
        Covey is compared with its plain decoding there, and with its drafts apart."""
        plain = named(peer, 0)
        ours = {
            "in process": ALONE,
            SERVER: SERVER_OFF,
            f"{SERVER}{STREAMED}": SERVER_OFF + STREAMED,
        }

        def over(name: str, drafts: bool, plainly: bool) -> JsonDict:
            found = {}
            for callers in sorted({callers for _, callers in self.runs}):
                rates = self._rates(temperature, callers)
                theirs = {
                    each: rates[each]
                    for each in rates
                    if each.startswith(f"{peer} ") and (plainly if each == plain else drafts)
                }
                found[str(callers)] = compared({name: rates.get(name, [])}, theirs)
            return found

        found: JsonDict = {"plain_over": {label: over(name, False, True) for label, name in ours.items()}}
        if peer == OPENVINO and temperature == HOT:
            return found | {
                "best_over": over(SERVER_COVEY, False, True),
                "over_lossy_drafts_of": over(SERVER_COVEY, True, False),
            }
        return found | {"best_over": over(SERVER_COVEY, True, True)}

    def _stage_ratios(self, above: Callable[[Mapping[str, float]], float], below: str) -> JsonDict:
        return {
            str(callers): _spread(ratios([above(turn) for turn in turns], [turn[below] for turn in turns]))
            for callers, turns in sorted(self.stages.items())
        }

    def _rates(self, temperature: float, callers: int) -> Rates:
        by_name = self.runs.get((temperature, callers), {})
        return {name: [run.rate for run in runs] for name, runs in by_name.items()}

    def _spreads(self, temperature: float) -> JsonDict:
        """Return the spread of rates by name, by callers."""
        callers = sorted(callers for t, callers in self.runs if t == temperature)
        by_name = report.turned({str(each): report.spreads(self._rates(temperature, each)) for each in callers})
        return dict(sorted(by_name.items()))


def compared(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> JsonDict | None:
    """Return the best of ours over the best of theirs; None where one has no turn. Of a single turn the best is picked
    on the runs that it is compared on."""
    found = best_over(ours, theirs, single=True) if theirs else None
    if found is None:
        return None
    return {**(_spread(found.ratios) or {}), "picked": list(found.picked), "over": list(found.opponents)}


def _spread(found: Sequence[float]) -> JsonDict | None:
    """Return the ratios' median, and where it lies at 95 %."""
    if not found:
        return None
    low, high = interval(found, of=median)
    return {"median": median(found), "interval": [low, high], "turns": len(found)}


def _limit(turn: Mapping[str, float]) -> float:
    """Return the machine's limit. Reading and multiplying by weights that lie packed may overlap: the faster of both
    could still be reached."""
    return min(turn["reading"], turn["products"])
