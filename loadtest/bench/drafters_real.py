"""Part `real` of the bench `drafters`: the bundled models behind the real server, at temperature 1.

One caller: each prompt is put to every system before the next one is, in an order drawn anew each time, so ratios are
of the same prompts within a minute. Batches: so many callers ask as many requests of mixed domains, every system in its
turn. All have the same length policy, the profile's, and choose among the same drafters. Under the coupled rule all of
them emit the same text, so tokens per round differ by the choice alone, and not by noise.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich.console import Console

from covey import prompts
from covey.types import JsonDict
from loadtest.bench import drafters_measured as measured_
from loadtest.bench import drafters_prompts, report, workload
from loadtest.bench.drafters_measured import COVEY, GENERAL, OFF, ORACLE
from loadtest.bench.drafters_servers import ALL, BOLD, END, SIX, System, serving
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import fixed
from loadtest.bench.session import FULL, QUICK, Session
from loadtest.bench.statistics import Spread, geometric_mean
from loadtest.bench.work import Answer, Ask

REPETITIONS, FULL_REPETITIONS, QUICK_REPETITIONS = 12, 20, 2
OUTPUT_TOKENS, QUICK_TOKENS = 128, 24
EACH = 2  # prompts of a domain that one caller asks in a repetition
HOT = 1.0
DEPTHS = (1, 2, 3, 4, 5, 6)
WARM_UP = 2  # requests of each domain
SWITCHING = "switching"
QUICK_SYSTEMS = (OFF, GENERAL, COVEY, ORACLE)


@dataclass(frozen=True)
class Case:
    """What is asked, by how many callers, of whom."""

    callers: int = 1
    temperature: float = HOT
    change: Callable[[str, str, int], str] = drafters_prompts.unchanged  # of a prompt: domain, text, seed
    domains: tuple[str, ...] = prompts.DOMAINS
    speculation: str = "auto"
    systems: tuple[str, ...] = tuple(SIX)


def cases(size: str) -> dict[str, Case]:
    if size == QUICK:
        return {"c1": Case(systems=QUICK_SYSTEMS), "mixed16": Case(16, systems=QUICK_SYSTEMS)}
    found = {"c1": Case(), "mixed16": Case(16)}
    if size == FULL:
        everybody = tuple(name for name in ALL if name not in (BOLD, END))
        found = {name: replace(case, systems=everybody) for name, case in found.items()}
        for temperature in (0.0, 0.7):
            found[f"c1 at {temperature:g}"] = Case(temperature=temperature)
            found[f"mixed16 at {temperature:g}"] = Case(16, temperature)
        found |= {f"mixed{callers}": Case(callers) for callers in (2, 4)}
        found |= {f"depth {depth}": Case(speculation=fixed(depth)) for depth in DEPTHS}
        found["undrafted"] = Case(domains=(drafters_prompts.UNDRAFTED,))
        for name in ("shuffled", "rephrased", "long"):
            found[name] = Case(change=getattr(drafters_prompts, name))
        found[SWITCHING] = Case(change=drafters_prompts.switching, systems=(*SIX, BOLD, END))
    return found


@dataclass
class Measured:
    """Every answer, by case, system and repetition."""

    answers: dict[str, dict[str, dict[int, list[tuple[str, Answer]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    seconds: dict[tuple[str, str, int], float] = field(default_factory=dict)  # of a batch, as a whole

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        return {case: self._case(case, systems) for case, systems in self.answers.items()}

    def _case(self, case: str, systems: Mapping[str, Mapping[int, list[tuple[str, Answer]]]]) -> JsonDict:
        count = max(len(done) for done in next(iter(systems.values())).values())
        whole = [r for r in next(iter(systems.values())) if all(len(done[r]) == count for done in systems.values())]
        speeds = {name: [_speeds(done[r]) for r in whole] for name, done in systems.items()}
        rates = {name: [self._rate(case, name, r, done[r]) for r in whole] for name, done in systems.items()}
        return {
            **measured_.keys(rates),
            **(_by_request(rates) if case == SWITCHING else {}),
            "tokens_per_second": {name: report.as_json(Spread.of(values)) for name, values in rates.items()},
            "tokens_per_round": {n: _per_round([a for r in whole for _, a in done[r]]) for n, done in systems.items()},
            "speedups": measured_.by_domain(speeds),
        }

    def _rate(self, case: str, name: str, repetition: int, done: Sequence[tuple[str, Answer]]) -> float:
        """Tokens per second: of one caller the geometric mean over domains, of several what all get."""
        seconds = self.seconds.get((case, name, repetition))
        if seconds is not None:
            return sum(len(answer.tokens) for _, answer in done) / seconds
        return geometric_mean(list(_speeds(done).values()))


def run(session: Session, measured: Measured) -> None:
    """Measure; results go into `measured` as they come."""
    wanted = session.wanted
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS, QUICK_REPETITIONS)
    tokens = QUICK_TOKENS if wanted.size == QUICK else OUTPUT_TOKENS
    chosen = cases(wanted.size)
    systems = {name: ALL[name] for name in dict.fromkeys(name for case in chosen.values() for name in case.systems)}
    session.notes |= {"output_tokens": tokens, "systems": {n: dict(s.speculation) for n, s in systems.items()}}
    with serving(session, systems) as asked:
        _warm_up(session, systems, asked)
        for repetition in range(repetitions):
            for name, case in chosen.items():
                if repetition and session.out_of_time():
                    return
                asked_now = asks(case, repetition, repetitions, tokens, wanted.seed)
                turns = _one_by_one if case.callers == 1 else _together
                label = f"repetition {repetition + 1}: {name}"
                turns(
                    session, measured, (name, case, repetition, label), asked_now, {s: asked[s] for s in case.systems}
                )
            session.notes["repetitions"] = repetition + 1


def _by_request(rates: Mapping[str, Sequence[float]]) -> JsonDict:
    """Against a specialist for the whole request: that of its beginning, or of its end, whichever is faster."""
    oracle = max((ORACLE, END), key=lambda name: median(rates[name]))
    return {
        "covey_over_oracle": measured_.compared(rates[COVEY], rates[oracle]),
        "ucb_0.1_over_oracle": measured_.compared(rates[BOLD], rates[oracle]),
        "oracle": oracle,
    }


Turn = tuple[str, Case, int, str]


def _one_by_one(
    session: Session, measured: Measured, turn: Turn, asks: Sequence[Ask], asked: Mapping[str, OverTriton]
) -> None:
    name, _, repetition, label = turn
    for index, (ask, _) in enumerate(zip(asks, session.steps([label] * len(asks)))):
        for system in workload.shuffled(list(asked), session.wanted.seed, repetition, index):
            done = asked[system].run([ALL[system].ask(ask)], 1, tenant=_tenant(system, name))
            measured.answers[name][system][repetition].append((ask.domain, done.answers[0]))


def _together(
    session: Session, measured: Measured, turn: Turn, asks: Sequence[Ask], asked: Mapping[str, OverTriton]
) -> None:
    name, case, repetition, label = turn
    order = workload.shuffled(list(asked), session.wanted.seed, repetition, case.callers)
    for system, _ in zip(order, session.steps([label] * len(order))):
        done = asked[system].run([ALL[system].ask(ask) for ask in asks], case.callers, tenant=_tenant(system, name))
        measured.seconds[name, system, repetition] = done.seconds
        measured.answers[name][system][repetition] += [(a.domain, each) for a, each in zip(asks, done.answers)]


def _tenant(system: str, case: str) -> str:
    """What a system has learnt stays with it, case by case; nobody finds another's prompts in a cache."""
    return f"{system} {case}"


def asks(case: Case, repetition: int, repetitions: int, tokens: int, seed: int) -> list[Ask]:
    """This repetition's: of one caller the same number of each domain, of several one for each, of mixed domains."""
    rng = random.Random(f"{seed} {repetition} {case.callers}")
    each = EACH if case.callers == 1 else -(-case.callers // len(case.domains))
    asks = [
        Ask(case.change(domain, text, rng.randrange(1 << 30)), tokens, case.temperature, domain=domain)
        for domain in case.domains
        for text in _dealt(domain, repetition, repetitions, each, seed)
    ]
    rng.shuffle(asks)
    return [replace(ask, seed=rng.randrange(1 << 30)) for ask in asks[: None if case.callers == 1 else case.callers]]


def _dealt(domain: str, repetition: int, repetitions: int, each: int, seed: int) -> list[str]:
    if domain == drafters_prompts.UNDRAFTED:
        return [
            drafters_prompts.RECIPES[(repetition * each + at) % len(drafters_prompts.RECIPES)] for at in range(each)
        ]
    return workload.by_repetition(domain, repetitions, each, seed=seed)[repetition]


def _warm_up(session: Session, systems: Mapping[str, System], asked: Mapping[str, OverTriton]) -> None:
    """Shapes are compiled, and what rounds take is known; of drafters nothing is that a tenant could use."""
    asks = [Ask(t, 24, HOT, 7, domain=d) for d in prompts.DOMAINS for t in prompts.load(d)[:WARM_UP]]
    for name, _ in zip(systems, session.steps([f"warming up: {name}" for name in systems])):
        for callers in (1, 16):
            asked[name].run([systems[name].ask(ask) for ask in asks], callers, tenant="warm-up")


def _speeds(done: Sequence[tuple[str, Answer]]) -> dict[str, float]:
    """Tokens per second of a request, by domain."""
    tokens: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for domain, answer in done:
        tokens[domain] += len(answer.tokens)
        seconds[domain] += answer.seconds
    return {domain: tokens[domain] / seconds[domain] for domain in sorted(tokens)}


def _per_round(answers: Sequence[Answer]) -> float | None:
    """Every round emits one token that was not drafted."""
    tokens = sum(len(answer.tokens) for answer in answers)
    rounds = tokens - sum(answer.accepted for answer in answers)
    return tokens / rounds if rounds else None


def parts(result: JsonDict) -> Iterator[tuple[str, JsonDict]]:
    """The cases of a result."""
    return (
        (name, found) for name, found in result.items() if isinstance(found, dict) and "covey_over_general" in found
    )


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """Tables, and beside them a picture."""
    found = dict(parts(result))
    for name in ("c1", "mixed16"):
        if name in found:
            console.print(measured_.shown(f"{name}: speed-up by domain", found[name]["speedups"]))
    console.print(measured_.shown_keys("covey", found))
    names = list(dict.fromkeys(name for part in found.values() for name in part["tokens_per_round"]))
    rows = [[n, *(report.number(part["tokens_per_round"].get(n)) for part in found.values())] for n in names]
    console.print(report.table("Tokens per round", ["", *found], rows))
    callers = {1: "c1", 2: "mixed2", 4: "mixed4", 16: "mixed16"}
    lines = {
        name: [
            (
                float(count),
                found[case]["tokens_per_second"][name]["median"] / found[case]["tokens_per_second"][OFF]["median"],
            )
            for count, case in callers.items()
            if case in found and name in found[case]["tokens_per_second"] and found[case]["tokens_per_second"][name]
        ]
        for name in names
        if name != OFF
    }
    panel = report.Panel("Speed-up", "callers", "over plain decoding", lines, log_x=True, from_zero=False)
    report.panels(picture, "Which drafter, bundled models", [panel])
