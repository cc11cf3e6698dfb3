"""Measures the gain of static speculation and of the profile's policy over none, at concurrency 1, by domain.

Requests name no drafter: the profile chooses. Every prompt goes to every depth and to the policy, greedily and at
temperature 1, in an order drawn anew each time. Texts end where the model ends them. The best depth is picked on odd
repetitions and compared on even ones, then the other way round. Every repetition has different prompts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console

from covey import prompts
from covey.contracts.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.derive import drafting
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import Session
from loadtest.bench.statistics import best_over, loops
from loadtest.bench.work import Answer, Ask, asked

DEPTHS, QUICK_DEPTHS = (1, 2, 3, 4, 5, 6), (2, 4)
AUTO = "auto"  # the default of requests: the policy chooses the depth
GREEDY, HOT = 0.0, 1.0
OUTPUT_TOKENS, QUICK_TOKENS = 128, 24
REPETITIONS = 12  # each with a prompt of every domain
OVERALL = "overall"

Rates = dict[str, list[float]]


@dataclass
class SpeedupAnswers:
    """Holds every answer, by temperature, domain and repetition: one entry per prompt, each by depth."""

    prompts: dict[tuple[float, str, int], list[dict[str, Answer]]] = field(default_factory=lambda: defaultdict(list))

    def looping(self, temperature: float, answers: Mapping[str, Answer]) -> bool:
        """Greedy text that repeats itself is easy to draft: such a prompt is left out for all."""
        return temperature == GREEDY and OFF in answers and loops(answers[OFF].tokens)

    def kept(self, temperature: float, domain: str) -> dict[int, list[dict[str, Answer]]]:
        """Return by repetition the prompts that count, of one domain or of all."""
        found: dict[int, list[dict[str, Answer]]] = defaultdict(list)
        for repetition, entries in self._chosen(temperature, domain):
            found[repetition] += [entry for entry in entries if not self.looping(temperature, entry)]
        return {repetition: found[repetition] for repetition in sorted(found) if found[repetition]}

    def rates(self, temperature: float, domain: str) -> Rates:
        """Return tokens per second by depth, one value per repetition."""
        kept = self.kept(temperature, domain)
        names = sorted({name for entries in kept.values() for entry in entries for name in entry})
        return {name: [_rate([entry[name] for entry in entries]) for entries in kept.values()] for name in names}

    def left_out(self, temperature: float, domain: str) -> JsonDict:
        chosen = [entry for _, entries in self._chosen(temperature, domain) for entry in entries]
        return {"prompts": len(chosen), "looping": sum(self.looping(temperature, entry) for entry in chosen)}

    def _chosen(self, temperature: float, domain: str) -> Iterator[tuple[int, list[dict[str, Answer]]]]:
        """Yield a repetition and its prompts of one domain, or of all."""
        for (hot, where, repetition), entries in self.prompts.items():
            if hot == temperature and domain in (where, OVERALL):
                yield repetition, entries

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        domains = [d for d in prompts.DOMAINS if any(where == d for _, where, _ in self.prompts)]
        return {
            OVERALL: self._scores(GREEDY, OVERALL),
            "overall_t1": self._scores(HOT, OVERALL),
            **{domain: {**self._scores(GREEDY, domain), "t1": self._scores(HOT, domain)} for domain in domains},
        }

    def _scores(self, temperature: float, domain: str) -> JsonDict:
        rates = self.rates(temperature, domain)
        static = {name: rates[name] for name in map(fixed, DEPTHS) if name in rates}
        best = best_over(static, {OFF: rates[OFF]}) if static and OFF in rates else None
        auto = best_over({AUTO: rates[AUTO]}, {OFF: rates[OFF]}) if {AUTO, OFF} <= rates.keys() else None
        return {
            "best_static_over_off": best.ratio if best else None,
            "best_static_over_off_interval": best.span if best else None,
            "policy_over_off": auto.ratio if auto else None,
            "policy_over_off_interval": auto.span if auto else None,
            "picked": list(best.picked) if best else None,
            "tokens_per_second": report.spreads(rates),
            **self.left_out(temperature, domain),
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    measured = SpeedupAnswers()
    session.summarise = measured.summary
    drafting(wanted.profile)
    quick = wanted.quick
    repetitions = session.repetitions(REPETITIONS, quick=2)
    domains = prompts.DOMAINS[:1] if quick else prompts.DOMAINS
    tokens = QUICK_TOKENS if quick else OUTPUT_TOKENS
    session.notes["output_tokens"] = tokens
    with session.server(wanted.options()) as server, ExitStack() as stack:
        known = wanted.prompts()
        choices = (OFF, *map(fixed, QUICK_DEPTHS if quick else DEPTHS))
        entrants = [OverTriton(server, name, stream=True, settings={"speculation": name}) for name in choices]
        entrants.append(OverTriton(server, AUTO, stream=True, settings={"speculation": AUTO}))
        for one in entrants:
            stack.callback(one.close)
        for one in session.each([(f"warming up: {one.name}", one) for one in entrants]):
            for domain in domains:
                one.run([asked(known[domain][0], 8, HOT, 0, domain)], 1, tenant="warm-up")
        texts = {d: workload.by_repetition(known[d], d, repetitions, seed=wanted.seed) for d in domains}
        for repetition in range(repetitions):
            asks = [
                asked(texts[domain][repetition], tokens, hot, repetition, domain)
                for hot in (GREEDY, HOT)
                for domain in domains
            ]
            labelled = [(f"repetition {repetition + 1}: {a.domain} at temperature {a.temperature:g}", a) for a in asks]
            for ask in session.each(labelled):
                if repetition > 1 and session.out_of_time():  # two are for the ratios
                    return
                _ask(session, measured, repetition, ask, entrants)
            session.notes["repetitions"] = repetition + 1


def _ask(session: Session, measured: SpeedupAnswers, repetition: int, ask: Ask, entrants: Sequence[OverTriton]) -> None:
    """Send a prompt to every depth and to the policy."""
    answers = {}
    for one in workload.shuffled(entrants, session.wanted.seed, repetition, len(measured.prompts)):
        tenant = f"{repetition} {ask.domain} {ask.temperature} {one.name}"  # finds nothing of the others' in any cache
        answers[one.name] = one.run([ask], 1, tenant=tenant).answers[0]
    measured.prompts[ask.temperature, ask.domain, repetition].append(answers)


def show(result: JsonDict, console: Console) -> None:
    parts: dict[str, JsonDict] = {OVERALL: result[OVERALL], "overall, temperature 1": result["overall_t1"]}
    for domain in (d for d in prompts.DOMAINS if d in result):
        parts |= {domain: result[domain], f"{domain}, temperature 1": result[domain]["t1"]}
    rows = [
        [
            name,
            report.number(part["best_static_over_off"]),
            ", ".join(part["picked"] or ()) or "-",
            report.number(part["policy_over_off"]),
            str(part["looping"]),
        ]
        for name, part in parts.items()
    ]
    console.print(
        report.table(
            "The best fixed depth, and the policy",
            ["", "over off", "picked", "policy over off", "loops left out"],
            rows,
        )
    )


def _rate(answers: list[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)
