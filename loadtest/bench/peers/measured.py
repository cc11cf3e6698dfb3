"""Holds what was measured, turn by turn, and makes the JSON's keys of it. Asks nobody.

Every ratio is of one turn, whose runs are minutes apart at most: a host that changes its speed changes both. Of several
choices the best is picked on odd turns and compared on even ones, then the other way round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
ALONE, FAST, SERVER = "alone", "alone fast", "server"  # Covey: a process in the served mode and in mode fast; Triton
SERVER_OFF, SERVER_COVEY = f"{SERVER} {OFF}", f"{SERVER} {COVEY}"
STREAMED = ", streamed"  # ends a name; all others answer as a whole
STAGES = {  # of a token's way, by what is left to come after; milliseconds of one round
    "reading": "the weights, read once",
    "products": "bare products",
    "fast": "the pass alone, mode fast",
    "pass": "the pass alone, as served",
    "step": "with sampling",
    "served": "the same in the target's process",
    "round": "with the loop and BLS",
    "client": "at the client",
}

Rates = dict[str, list[float]]


@dataclass
class PeerRuns:
    """Holds runs by temperature, callers and name, and stages by callers, in the order of turns; and what is known
    once."""

    runs: dict[tuple[float, int], dict[str, list[Run]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    stages: dict[int, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    passes: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # callers -> at depth: pass, level; ms

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        found: JsonDict = {}
        for suffix, temperature in (("", GREEDY), ("_t1", HOT)):
            for peer in (OPENVINO, VLLM):
                found |= {f"{key}_{peer}{suffix}": value for key, value in self._over(peer, temperature).items()}
        return found | {
            "limit_share": self._stage_ratios(_limit, "pass"),
            "limit_share_fast": self._stage_ratios(_limit, "fast"),
            "pass_in_server_over_alone": self._stage_ratios(lambda turn: turn["served"], "step"),
            "tokens_per_second": {label: self._spreads(t) for label, t in TEMPERATURES.items()},
            "acceptance": {label: self.acceptance(t) for label, t in TEMPERATURES.items()},
            "bound": {label: self._bounds(t) for label, t in TEMPERATURES.items()},
            "waterfall_ms": {
                str(callers): {stage: median(turn[stage] for turn in turns) for stage in STAGES}
                for callers, turns in sorted(self.stages.items())
            },
        }

    def acceptance(self, temperature: float) -> float | None:
        """Return the acceptance of Covey's drafts, over all callers."""
        return acceptance_of(
            (name, runs)
            for (t, _), by_name in self.runs.items()
            for name, runs in by_name.items()
            if t == temperature and name.startswith(SERVER)
        )

    def _over(self, peer: str, temperature: float) -> JsonDict:
        """Return ratios over a peer by key and callers. At temperature 1 drafts of OpenVINO's change what is drawn, so
        Covey is compared with its plain decoding there, and with its drafts apart."""
        plain = named(peer, 0)
        ours = {
            "in process": ALONE,
            "in process, fast": FAST,
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

    def _bounds(self, temperature: float) -> JsonDict:
        """Return what drafting can gain over plain decoding at the best depth, if rounds took no longer than their pass
        and their levels; and over OpenVINO's best, as fast as Covey decodes plainly in a process."""
        chance = self.acceptance(temperature)
        found: JsonDict = {}
        for callers, costs in sorted(self.passes.items()) if chance is not None else ():
            gain, depth = bound_of(chance, costs)
            rates = self._rates(temperature, callers)
            theirs = {
                name: values
                for name, values in rates.items()
                if name.startswith(f"{OPENVINO} ") and (temperature == GREEDY or name == named(OPENVINO, 0))
            }
            alone = compared({ALONE: rates.get(ALONE, [])}, theirs)
            over_openvino = alone and gain * alone["median"]
            found[str(callers)] = {"over_plain": gain, "depth": depth, "over_openvino": over_openvino}
        return found

    def _rates(self, temperature: float, callers: int) -> Rates:
        by_name = self.runs.get((temperature, callers), {})
        return {name: [run.rate for run in runs] for name, runs in by_name.items()}

    def _spreads(self, temperature: float) -> JsonDict:
        """Return the spread of rates by name, by callers."""
        callers = sorted(callers for t, callers in self.runs if t == temperature)
        by_name = report.turned({str(each): report.spreads(self._rates(temperature, each)) for each in callers})
        return dict(sorted(by_name.items()))


def acceptance_of(found: Iterable[tuple[str, Sequence[Run]]]) -> float | None:
    """Return how often a draft is right where those before it were, from runs at fixed depths, by their names. Of
    drafts of depth K so many are accepted on average as a + a^2 + .. + a^K."""
    chances = []
    for name, runs in found:
        depth = _depth(name)
        drafted = sum(answer.drafted for run in runs for answer in run.answers)
        if depth and drafted:
            accepted = sum(answer.accepted for run in runs for answer in run.answers)
            chances.append(_solved(accepted * depth / drafted, depth))
    return median(chances) if chances else None


def bound_of(chance: float, costs: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """Return what drafting gains over plain decoding at the best depth, and that depth, where a draft is right so often
    after right ones, and a round takes no longer than its pass and its levels. `costs` has both by depth, from 0 on."""
    plain = costs[0][0]
    return max(
        (sum(chance**step for step in range(depth + 1)) * plain / (taken + depth * level), depth)
        for depth, (taken, level) in enumerate(costs)
    )


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


def _depth(name: str) -> int:
    """Return the depth of a fixed choice; 0 of others."""
    _, _, depth = name.partition("fixed:")
    return int(depth or 0)


def _solved(accepted: float, depth: int) -> float:
    """Return the chance `a` of which a + a^2 + .. + a^depth is that many."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**step for step in range(1, depth + 1)) < accepted else (low, middle)
    return low
