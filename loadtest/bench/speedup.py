"""Measures the adaptive policy against no drafts and against fixed draft lengths, at several loads.

One server answers every request over a gRPC stream. The candidates are values of the request's `speculation`: `auto`,
`off` and `fixed:K`. At each load a short screening leaves the fastest lengths of each temperature. The candidates then
take turns. In a turn, each one gets the same prompts of all domains with the same seeds, in a random order; the
next turn has other prompts. Texts end where the model ends them.

Every candidate has a new tenant in every turn, which asks no prompt twice: the server would replay the earlier answer.
The best static choice of odd turns is compared on even turns, then the other way round. Intervals are at 95 %, by
bootstrap over turns. The policy may also learn from the rounds of the other candidates.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console

from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from covey.target.runner import typed
from loadtest import charts
from loadtest.bench import report, workload
from loadtest.bench.derive import drafting
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import Session
from loadtest.bench.statistics import best_over, loops
from loadtest.bench.work import Answer, Ask, Competitor, Run, asked
from loadtest.questions import Prompts

AUTO = "auto"  # the default of requests: the policy chooses the depth
TEMPERATURES = GREEDY, HOT = 0.0, 1.0
CALLERS, QUICK_CALLERS = (1, 4, 16, 32), (1, 4)
DEPTHS, QUICK_DEPTHS = (1, 2, 3, 4, 5, 6), (2, 4)
KEPT, QUICK_KEPT = 2, 1  # depths that screening leaves
REQUESTS, QUICK_REQUESTS = 6, 2  # of a turn, at least: one for each domain
TOKENS, QUICK_TOKENS = 64, 12  # of an answer, at most
SCREENED = 0.5  # of these, in the screening
TURNS = 64  # at most
OVER_OFF, OVER_STATIC, STATIC_OVER_OFF = "adaptive_over_off", "adaptive_over_best_static", "best_static_over_off"
RATIOS = (OVER_OFF, OVER_STATIC, STATIC_OVER_OFF)
SPEEDS = ("tokens_per_second", "tokens_per_second_per_user", "seconds_to_first_token")


@dataclass(frozen=True)
class Turn:
    """Holds what every candidate answered to the same requests of one temperature."""

    asks: Sequence[Ask]
    runs: Mapping[str, Run]

    @property
    def kept(self) -> list[int]:
        """Return the places of the requests that count. Greedy text that repeats itself is easy to draft: such a
        request is left out for all candidates."""
        plain = self.runs[OFF].answers
        return [place for place, ask in enumerate(self.asks) if ask.temperature or not loops(plain[place].tokens)]

    def answers(self, name: str) -> list[tuple[str, Answer]]:
        """Return a candidate's answers that count, each with its domain."""
        return [(self.asks[place].domain, self.runs[name].answers[place]) for place in self.kept]

    def rate(self, name: str) -> float:
        """Return tokens per second. The run's time is divided among all requests by how long each took; the
        parts of those that do not count are left out."""
        run, counted = self.runs[name], [answer for _, answer in self.answers(name)]
        share = sum(answer.seconds for answer in counted) / sum(answer.seconds for answer in run.answers)
        return sum(len(answer.tokens) for answer in counted) / (share * run.seconds)


@dataclass
class Point:
    """Holds the turns at one load and temperature."""

    turns: list[Turn] = field(default_factory=list)
    screened: dict[str, float] = field(default_factory=dict)  # tokens per second

    def candidates(self, count: int) -> list[str]:
        """Return the candidates: `count` depths, the fastest of the screening, join the policy and no drafts."""
        depths = sorted(self.screened.keys() - {AUTO, OFF}, key=lambda name: -self.screened[name])
        return [AUTO, OFF, *depths[:count]]

    def summary(self) -> JsonDict:
        """Return the JSON's keys. A ratio is its median and interval, or null before there are two turns."""
        counted = [turn for turn in self.turns if turn.kept]
        names = list(counted[0].runs) if counted else []
        rates = {name: [turn.rate(name) for turn in counted] for name in names}
        static = {name: rates[name] for name in names if name != AUTO}
        adaptive = {AUTO: rates.get(AUTO, [])}
        lengths = {name: values for name, values in static.items() if name != OFF}
        pairs = ((adaptive, {OFF: rates.get(OFF, [])}), (adaptive, static), (lengths, {OFF: rates.get(OFF, [])}))
        found = dict(zip(RATIOS, (best_over(above, below) for above, below in pairs)))
        against = found[OVER_STATIC]
        answers = {name: [each for turn in counted for each in turn.answers(name)] for name in names}
        texts = {name: [answer.tokens for _, answer in each] for name, each in answers.items()}
        return {
            **{key: best.median_and_interval if best else None for key, best in found.items()},
            "best_static": list(against.opponents) if against else None,
            "turns": len(self.turns),
            "requests": sum(len(turn.asks) for turn in self.turns),
            "looping": sum(len(turn.asks) - len(turn.kept) for turn in self.turns),
            "tokens_per_second": report.spreads(rates),
            "tokens_per_second_per_user": _medians(answers, lambda answer: len(answer.tokens) / answer.seconds),
            "seconds_to_first_token": _medians(answers, lambda answer: answer.first),
            "callers_at_work": {name: mean([turn.runs[name].at_work for turn in counted]) for name in names},
            "texts_that_differ_from_off": {
                name: sum(mine != plain for mine, plain in zip(each, texts[OFF])) for name, each in texts.items()
            },
            "acceptance": {name: _acceptance(each) for name, each in answers.items() if name != OFF},
            "screening": self.screened,
        }


@dataclass
class SpeedupAnswers:
    """Holds every answer, by callers and temperature."""

    points: dict[int, dict[float, Point]] = field(default_factory=dict)

    def at(self, callers: int) -> dict[float, Point]:
        return self.points.setdefault(callers, {temperature: Point() for temperature in TEMPERATURES})

    def summary(self) -> JsonDict:
        """Return the JSON's keys: the ratios, and everything else under `points`, by callers and temperature."""
        points = {
            str(callers): {f"{temperature:g}": point.summary() for temperature, point in by.items()}
            for callers, by in self.points.items()
        }
        ratios: JsonDict = {
            key: {callers: {t: point.pop(key) for t, point in by.items()} for callers, by in points.items()}
            for key in RATIOS
        }
        return {**ratios, "points": points}


@dataclass(frozen=True)
class Load:
    """Asks the candidates, by name, at one number of callers."""

    session: Session
    entrants: Mapping[str, Competitor]
    known: Prompts
    callers: int
    clock: Callable[[], float] = time.monotonic

    def measure(self, points: Mapping[float, Point], seconds: float) -> None:
        """Screen the depths, then take turns for as long as the next one would end within `seconds`."""
        wanted, until = self.session.wanted, self.clock() + seconds
        tokens = wanted.sized(TOKENS, QUICK_TOKENS)
        names = {temperature: list(self.entrants) for temperature in points}
        took = 0.0
        for temperature, turn in self._turn(0, names, round(tokens * SCREENED)):
            point = points[temperature]
            point.screened = {name: done.rate for name, done in turn.runs.items()}
            names[temperature] = point.candidates(wanted.sized(KEPT, QUICK_KEPT))
            took += sum(turn.runs[name].seconds for name in names[temperature]) / SCREENED
        for number in range(1, self.session.repetitions(TURNS, quick=2) + 1):
            began = self.clock()
            if began + took > until or self.session.out_of_time():
                break
            for temperature, turn in self._turn(number, names, tokens):
                points[temperature].turns.append(turn)
            lasted = self.clock() - began
            took = max(took, lasted) if number > 1 else lasted

    def _turn(self, number: int, names: Mapping[float, Sequence[str]], tokens: int) -> Iterator[tuple[float, Turn]]:
        """Yield each temperature and its turn, as far as there is time. Turn 0 is the screening."""
        seed, least = self.session.wanted.seed, self.session.wanted.sized(REQUESTS, QUICK_REQUESTS)
        dealt = workload.dealt(self.known, self.callers * math.ceil(least / self.callers), number, seed=seed)
        doing = f"callers {self.callers}, " + (f"turn {number}" if number else "screening")
        for temperature, chosen in names.items():
            asks = [
                asked(prompt, tokens, temperature, seed * 1_000_003 + number * 1_009 + place, domain)
                for place, (domain, prompt) in enumerate(dealt)
            ]
            order = workload.shuffled(chosen, seed, self.callers, number, int(temperature))
            runs = {}
            for name in self.session.each([(f"{doing}, temperature {temperature:g}: {name}", name) for name in order]):
                if self.session.out_of_time():
                    return
                # Every run has its own tenant, which finds nothing of the others' in any cache.
                tenant = f"{self.callers} {number} {temperature} {name}"
                runs[name] = self.entrants[name].run(asks, self.callers, tenant=tenant)
            yield temperature, Turn(asks, {name: runs[name] for name in chosen})


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted, measured = session.wanted, SpeedupAnswers()
    session.summarise, session.draw = measured.summary, picture
    settings = drafting(wanted.profile)
    folder = wanted.target_folder(settings)
    weights = typed(folder, settings.target).dtype
    session.notes |= {"target": Path(folder).name if wanted.model else wanted.profile, "weights": weights}
    loads = wanted.callers or wanted.sized(CALLERS, QUICK_CALLERS)
    known = wanted.prompts()
    if not 0 < min(loads) <= max(loads) <= (most := len(known) * min(map(len, known.values()))):
        raise SettingError(f"--callers: allowed: 1 to {most}, which is a prompt for each")
    names = (AUTO, OFF, *map(fixed, wanted.sized(DEPTHS, QUICK_DEPTHS)))
    with session.server(wanted.options()) as server, ExitStack() as stack:
        entrants: dict[str, Competitor] = {}
        for name in names:
            one = OverTriton(server, name, stream=True, settings={"speculation": name})
            stack.callback(one.close)
            entrants[name] = one
        for place, callers in enumerate(loads):
            load = Load(session, entrants, known, callers)
            load.measure(measured.at(callers), session.share(len(loads) - place))


def show(result: JsonDict, console: Console) -> None:
    """Print the ratios, the rates, and the policy's acceptance."""
    ratios, rates, shares = [], [], []
    for callers, by in result["points"].items():
        for temperature, point in by.items():
            where = [callers, temperature]
            found = [result[key][callers][temperature] for key in RATIOS]
            over = [report.between(each and {"median": each[0], "interval": each[1:]}) for each in found]
            best = ", ".join(dict.fromkeys(point["best_static"] or ())) or "-"
            ratios.append([*where, *over, best, str(point["turns"])])
            rates += [[*where, name, *(report.number(point[key][name]) for key in SPEEDS)] for name in point[SPEEDS[0]]]
            if accepted := point["acceptance"].get(AUTO):
                parts = [*accepted["by_domain"].items(), *enumerate(accepted["by_position"], start=1)]
                shares.append([*where, ", ".join(f"{part} {report.number(share)}" for part, share in parts)])
    where = ["callers", "temperature"]
    columns = [*where, "auto over off", "auto over best static", "best depth over off", "best static", "turns"]
    console.print(report.table("Ratios of tokens/s: median (95 % interval)", columns, ratios))
    columns = [*where, "", "tokens/s", "tokens/s of a user", "first token, s"]
    console.print(report.table("Medians", columns, rates))
    console.print(report.table("Share of the policy's drafts accepted", [*where, "by domain, by position"], shares))
    console.print(_measured(result))


def picture(result: JsonDict) -> str:
    """Return the ratios over no drafts by callers, as SVG."""
    lines = {
        f"{called}, temperature {temperature:g}": {
            callers: by.get(f"{temperature:g}") for callers, by in result[key].items()
        }
        for called, key in (("adaptive", OVER_OFF), ("best fixed length", STATIC_OVER_OFF))
        for temperature in TEMPERATURES
    }
    return charts.intervals(_measured(result), "callers", "tokens/s over no drafts", lines, level=1.0)


def _measured(result: JsonDict) -> str:
    """Return what was measured: model, type of its weights, CPU, commit."""
    named = (result.get("target"), result.get("weights"), result["hardware"]["processor"])
    return ", ".join([*filter(None, named), f"commit {result['versions']['commit']}"])


def _medians(answers: Mapping[str, list[tuple[str, Answer]]], value: Callable[[Answer], float]) -> dict[str, float]:
    return {name: median(value(answer) for _, answer in each) for name, each in answers.items()}


def _acceptance(answers: Sequence[tuple[str, Answer]]) -> JsonDict:
    """Return accepted tokens over drafted ones by domain, and by position the share of drafts accepted up to there."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for domain, answer in answers:
        counts[domain] = [sum(both) for both in zip(counts[domain], (answer.accepted, answer.drafted))]
    columns: Any = zip_longest(*(answer.lengths for _, answer in answers), fillvalue=0)
    drafts = [sum(column) for column in columns]
    return {
        "by_domain": {domain: accepted / drafted for domain, (accepted, drafted) in counts.items() if drafted},
        "by_position": [sum(drafts[place:]) / sum(drafts) for place in range(1, len(drafts))],
    }
