"""Measures which drafter is best: MetaSD's Table 3 in small. Compares policies that choose drafters, each drafter alone
and plain decoding, with the bundled models behind the real server, at temperature 1.

One caller: each prompt is put to every system before the next one is, in an order drawn anew each time, so ratios are
of the same prompts within a minute. Batches: so many callers ask as many requests of mixed domains, every system in its
turn. All have the same length policy, the profile's, and choose among the same drafters. Under the coupled rule all of
them emit the same text, so tokens per round differ by the choice alone, and not by noise.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean, median

from rich.console import Console

from covey import prompts
from covey.contracts import profile
from covey.contracts.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.drafters_servers import (
    ALL,
    COMPARED,
    COVEY,
    GENERAL,
    HEAD,
    OFF,
    ORACLE,
    RANDOM,
    SUFFIX,
    UCB_BD,
    UCB_BE,
    serving,
)
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.session import FULL, QUICK, Session
from loadtest.bench.statistics import interval, ratios
from loadtest.bench.work import Answer, Ask

REPETITIONS, FULL_REPETITIONS, QUICK_REPETITIONS = 12, 20, 2
OUTPUT_TOKENS, QUICK_TOKENS = 128, 24
EACH = 2  # prompts of a domain that one caller asks in a repetition
TEMPERATURE = 1.0
WARM_UP = 2  # requests of each domain
CALLERS = {"c1": 1, "mixed16": 16}  # by case
QUICK_SYSTEMS = (OFF, GENERAL, COVEY, ORACLE)
AGAINST = {
    "covey_over_best_single": (GENERAL, SUFFIX, HEAD),
    "covey_over_general": (GENERAL,),
    "covey_over_random": (RANDOM,),
    "covey_over_ucb": (UCB_BE, UCB_BD),
    "covey_share_of_oracle": (ORACLE,),
}

Entrants = Mapping[str, OverTriton]  # by system


def systems_of(size: str) -> tuple[str, ...]:
    return {QUICK: QUICK_SYSTEMS, FULL: tuple(ALL)}.get(size, tuple(COMPARED))


def is_served(system: str, drafters: Sequence[str]) -> bool:
    """Return whether a system's own drafter is among these; systems without one are anywhere."""
    name = ALL[system].speculation.get("drafter_policy", "").partition("fixed:")[2]
    return not name or name in drafters


@dataclass
class DrafterRuns:
    """Holds every answer, by case, system and repetition."""

    answers: dict[str, dict[str, dict[int, list[tuple[str, Answer]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    seconds: dict[tuple[str, str, int], float] = field(default_factory=dict)  # of a batch, as a whole

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        return {case: self._case(case, systems) for case, systems in self.answers.items()}

    def _case(self, case: str, systems: Mapping[str, Mapping[int, list[tuple[str, Answer]]]]) -> JsonDict:
        count = max(len(done) for done in next(iter(systems.values())).values())
        whole = [r for r in next(iter(systems.values())) if all(len(done[r]) == count for done in systems.values())]
        speeds = {name: [_speeds(done[r]) for r in whole] for name, done in systems.items()}
        rates = {name: [self._rate(case, name, r, done[r]) for r in whole] for name, done in systems.items()}
        return {
            **keys(rates),
            "tokens_per_second": report.spreads(rates),
            "tokens_per_round": {n: _per_round([a for r in whole for _, a in done[r]]) for n, done in systems.items()},
            "speedups": by_domain(speeds),
        }

    def _rate(self, case: str, name: str, repetition: int, done: Sequence[tuple[str, Answer]]) -> float:
        """Return tokens per second: the geometric mean over domains of one caller, or what several have together."""
        seconds = self.seconds.get((case, name, repetition))
        if seconds is not None:
            return sum(len(answer.tokens) for _, answer in done) / seconds
        return geometric_mean(list(_speeds(done).values()))


def keys(rates: Mapping[str, Sequence[float]]) -> JsonDict:
    """Return how covey fares against the others, by tokens per second in each repetition. Of two opponents in one key
    the better counts."""
    found: JsonDict = {}
    for key, names in AGAINST.items():
        there = [name for name in names if rates.get(name)]
        best = max(there, key=lambda name: median(rates[name]), default=None)
        each = ratios(rates.get(COVEY, ()), rates[best]) if best is not None else []
        found[key] = None
        if each:
            found[key] = {"median": median(each), "interval": interval(each, of=median), "repetitions": len(each)}
    return found


def by_domain(speeds: Mapping[str, Sequence[Mapping[str, float]]]) -> JsonDict:
    """Return the speed-up over `off` by system and domain, the median over repetitions, and the geometric mean over
    domains: Table 3. `speeds`: by system and repetition, tokens per second of each domain."""
    table: JsonDict = {}
    for name, repetitions in speeds.items():
        pairs = list(zip(repetitions, speeds.get(OFF, ())))
        if pairs and name != OFF:
            domains = {d: median(ratios([own[d] for own, _ in pairs], [b[d] for _, b in pairs])) for d in pairs[0][0]}
            table[name] = {**domains, "mean": geometric_mean(list(domains.values()))}
    return table


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted, measured = session.wanted, DrafterRuns()
    session.summarise = measured.summary
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS, QUICK_REPETITIONS)
    tokens = QUICK_TOKENS if wanted.size == QUICK else OUTPUT_TOKENS
    there = profile.load(wanted.profile).speculation.drafters
    systems = {name: ALL[name] for name in systems_of(wanted.size) if is_served(name, there)}
    session.notes |= {"output_tokens": tokens, "systems": {n: dict(s.speculation) for n, s in systems.items()}}
    with serving(session, systems) as asked:
        _warm_up(session, asked)
        for repetition in range(repetitions):
            for case, callers in CALLERS.items():
                if repetition and session.out_of_time():
                    return
                asks_now = asks(callers, repetition, repetitions, tokens, wanted.seed)
                _turns(session, measured, case, repetition, asks_now, asked)
            session.notes["repetitions"] = repetition + 1


def _turns(
    session: Session, measured: DrafterRuns, case: str, repetition: int, asks: Sequence[Ask], asked: Entrants
) -> None:
    """Put to all systems in turn one request after the other, or those of several callers at once. The tenant is a
    system's own in a case: what it has learnt stays with it, and nobody finds another's prompts in a cache."""
    batches = [[ask] for ask in asks] if CALLERS[case] == 1 else [asks]
    steps = [
        (f"repetition {repetition + 1}: {case}", (batch, system))
        for index, batch in enumerate(batches)
        for system in workload.shuffled(list(asked), session.wanted.seed, repetition, index)
    ]
    for batch, system in session.each(steps):
        done = asked[system].run([ALL[system].ask(ask) for ask in batch], len(batch), tenant=f"{system} {case}")
        if CALLERS[case] > 1:
            measured.seconds[case, system, repetition] = done.seconds
        measured.answers[case][system][repetition] += [(a.domain, each) for a, each in zip(batch, done.answers)]


def asks(callers: int, repetition: int, repetitions: int, tokens: int, seed: int) -> list[Ask]:
    """Return this repetition's requests: one caller's have the same number of each domain, several callers have one
    each, of mixed domains."""
    rng = random.Random(f"{seed} {repetition} {callers}")
    each = EACH if callers == 1 else -(-callers // len(prompts.DOMAINS))
    asks = [
        Ask(text, tokens, TEMPERATURE, domain=domain)
        for domain in prompts.DOMAINS
        for text in workload.by_repetition(domain, repetitions, each, seed=seed)[repetition]
    ]
    rng.shuffle(asks)
    return [replace(ask, seed=rng.randrange(1 << 30)) for ask in asks[: None if callers == 1 else callers]]


def _warm_up(session: Session, asked: Entrants) -> None:
    """Have shapes compiled and rounds timed; nothing is learnt of drafters that a tenant could use."""
    asks = [Ask(t, 24, TEMPERATURE, 7, domain=d) for d in prompts.DOMAINS for t in prompts.load(d)[:WARM_UP]]
    for name in session.each([(f"warming up: {name}", name) for name in asked]):
        for callers in (1, 16):
            asked[name].run([ALL[name].ask(ask) for ask in asks], callers, tenant="warm-up")


def _speeds(done: Sequence[tuple[str, Answer]]) -> dict[str, float]:
    """Return tokens per second of a request, by domain."""
    tokens: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for domain, answer in done:
        tokens[domain] += len(answer.tokens)
        seconds[domain] += answer.seconds
    return {domain: tokens[domain] / seconds[domain] for domain in sorted(tokens)}


def _per_round(answers: Sequence[Answer]) -> float | None:
    """Return the tokens of a round, each of which emits one token that was not drafted."""
    tokens = sum(len(answer.tokens) for answer in answers)
    rounds = tokens - sum(answer.accepted for answer in answers)
    return tokens / rounds if rounds else None


def show(result: JsonDict, console: Console) -> None:
    found = {name: part for name, part in result.items() if isinstance(part, dict) and "covey_over_general" in part}
    for name in CALLERS:
        table = found.get(name, {}).get("speedups", {})
        domains = list(next(iter(table.values()), {}))
        rows = [[system, *(report.number(row[domain]) for domain in domains)] for system, row in table.items()]
        console.print(report.table(f"{name}: speed-up by domain", ["", *domains], rows))
    rows = [[name, *(report.between(part[key], 3) for key in AGAINST)] for name, part in found.items()]
    console.print(report.table("covey", ["", *(key.removeprefix("covey_").replace("_", " ") for key in AGAINST)], rows))
    console.print(report.grid("Tokens per round", {name: part["tokens_per_round"] for name, part in found.items()}))
