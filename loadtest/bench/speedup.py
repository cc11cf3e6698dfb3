"""What static speculation gains at concurrency 1, domain by domain, over none and over transformers.

Every prompt is put to every contestant, greedily and at temperature 1, in an order drawn anew each time: a contestant
may leave caches and threads in a state that its successor pays for. Texts end where the model ends them. The best
static choice is picked on odd repetitions and compared on even ones, then the other way round; every repetition has
prompts of its own.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from rich.console import Console

from covey import profile, prompts
from covey.errors import SettingError
from covey.server import Options
from covey.types import JsonDict
from loadtest.bench import contestants, report, workload
from loadtest.bench.contestants import ASSISTED, DEPTHS, GENERATE, LOOKUP, REJECTION, TREE, WITHOUT, Cast
from loadtest.bench.derive import derive, with_drafters
from loadtest.bench.hugging_face import Weights
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import Best, Spread, best_over, loops, median_ratio
from loadtest.bench.work import Answer, Ask, Competitor

GREEDY, HOT = 0.0, 1.0
OUTPUT_TOKENS, QUICK_TOKENS = 128, 24
REPETITIONS, FULL_REPETITIONS, EACH = 6, 20, 2  # prompts of a domain in a repetition
OVERALL = "overall"

Rates = dict[str, list[float]]


@dataclass
class Measured:
    """Every answer, by temperature, domain and repetition: one entry per prompt, each by contestant."""

    prompts: dict[tuple[float, str, int], list[dict[str, Answer]]] = field(default_factory=lambda: defaultdict(list))

    def looping(self, temperature: float, answers: Mapping[str, Answer]) -> bool:
        """Greedy text that repeats itself is easy to draft: such a prompt counts for nobody."""
        return temperature == GREEDY and any(loops(answers[n].tokens) for n in (OFF, GENERATE) if n in answers)

    def kept(self, temperature: float, domain: str) -> dict[int, list[dict[str, Answer]]]:
        """By repetition, what counts of one domain, or of all."""
        found: dict[int, list[dict[str, Answer]]] = defaultdict(list)
        for (hot, where, repetition), entries in self.prompts.items():
            if hot == temperature and domain in (where, OVERALL):
                found[repetition] += [entry for entry in entries if not self.looping(temperature, entry)]
        return {repetition: found[repetition] for repetition in sorted(found) if found[repetition]}

    def rates(self, temperature: float, domain: str) -> Rates:
        """Tokens per second by contestant, one value per repetition; of those who were there every time."""
        kept = self.kept(temperature, domain)
        names = {name for entries in kept.values() for entry in entries for name in entry}
        return {
            name: [_rate([entry[name] for entry in entries]) for entries in kept.values()]
            for name in sorted(names)
            if all(name in entry for entries in kept.values() for entry in entries)
        }

    def left_out(self, temperature: float, domain: str) -> JsonDict:
        chosen = [
            entry
            for (hot, where, _), entries in self.prompts.items()
            if hot == temperature and domain in (where, OVERALL)
            for entry in entries
        ]
        return {"prompts": len(chosen), "looping": sum(self.looping(temperature, entry) for entry in chosen)}

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        domains = [d for d in prompts.DOMAINS if any(where == d for _, where, _ in self.prompts)]
        return {
            OVERALL: self._scores(GREEDY, OVERALL),
            "overall_t1": self._scores(HOT, OVERALL),
            **{domain: {**self._scores(GREEDY, domain), "t1": self._scores(HOT, domain)} for domain in domains},
            "coupled_over_rejection_acceptance": self._rules(OVERALL),
            "coupled_over_rejection_acceptance_by_domain": {domain: self._rules(domain) for domain in domains},
            "off_over_without_drafters": self._without(),
        }

    def _scores(self, temperature: float, domain: str) -> JsonDict:
        rates = self.rates(temperature, domain)
        static = {name: rates[name] for name in (*map(fixed, DEPTHS), TREE) if name in rates}
        opponents = {
            "best_static_over_off": [OFF],
            "best_static_over_hf_generate": [GENERATE],
            "best_static_over_hf_assisted": list(ASSISTED),
            "best_static_over_hf_prompt_lookup": [LOOKUP],
        }
        found: JsonDict = {}
        for key, names in opponents.items():
            against = {name: rates[name] for name in names if name in rates}
            best = best_over(static, against) if static and against else None
            found[key] = best.ratio if best else None
            found[f"{key}_interval"] = [best.low, best.high] if best else None
            found.setdefault("picked", _picked(best))
        found["tokens_per_second"] = {name: report.as_json(Spread.of(values)) for name, values in rates.items()}
        found["acceptance"] = {name: self._acceptance(temperature, domain, name) for name in (*static, REJECTION)}
        return found | self.left_out(temperature, domain)

    def _acceptance(self, temperature: float, domain: str, name: str) -> float | None:
        """Accepted tokens over drafted ones, loops left out."""
        answers = [
            entry[name] for entries in self.kept(temperature, domain).values() for entry in entries if name in entry
        ]
        drafted = sum(answer.drafted for answer in answers)
        return sum(answer.accepted for answer in answers) / drafted if drafted else None

    def _rules(self, domain: str) -> float | None:
        coupled = self._acceptance(HOT, domain, fixed(contestants.RULES_DEPTH))
        rejection = self._acceptance(HOT, domain, REJECTION)
        return coupled / rejection if coupled is not None and rejection else None

    def _without(self) -> float | None:
        """Prompt by prompt; loops count, since neither drafts."""
        both = [answers for entries in self.prompts.values() for answers in entries if {OFF, WITHOUT} <= answers.keys()]
        return median_ratio(*([_rate([answers[name]]) for answers in both] for name in (OFF, WITHOUT)))


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    measured = Measured()
    session.summarise = measured.summary
    settings = profile.load(wanted.profile)
    if not settings.speculation.drafters:
        raise SettingError(f"profile {wanted.profile}: speculation.drafters is empty; name one that has drafters")
    quick = wanted.size == QUICK
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS, quick=2)
    options = wanted.options()
    folder = wanted.target_folder(settings)
    weights = cache(lambda path: Weights.load(path, settings.target))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cast = Cast(
            settings,
            folder,
            options.repository_folder(),
            server=stack.enter_context(session.server(options)),
            trees=None if quick else stack.enter_context(session.server(_with_trees(settings, options, scratch))),
            without=None if quick else stack.enter_context(session.server(_without(settings, options, scratch))),
            depths=(2, 4) if quick else DEPTHS,
            assisted=tuple(ASSISTED)[:1] if quick else tuple(ASSISTED),
        )
        domains = prompts.DOMAINS[:1] if quick else prompts.DOMAINS
        field_of = {
            (domain, hot): [
                *cast.over_triton(domain, hot=hot == HOT),
                *cast.hugging_face(domain, weights(folder), weights),
            ]
            for domain in domains
            for hot in (GREEDY, HOT)
        }
        session.notes |= {
            "drafters": {domain: cast.drafter(domain) for domain in domains},
            "tree": {"depth": contestants.TREE_DEPTH, "width": contestants.TREE_WIDTH},
            "output_tokens": QUICK_TOKENS if quick else OUTPUT_TOKENS,
        }
        _warm_up(session, field_of)
        for repetition in range(repetitions):
            if repetition and session.out_of_time():
                break
            _repetition(session, measured, repetition, repetitions, field_of, 1 if quick else EACH)
            session.notes["repetitions"] = repetition + 1


def _warm_up(session: Session, field_of: Mapping[tuple[str, float], list[Competitor]]) -> None:
    labels = [f"warming up: {domain}" for domain, _ in field_of]
    for ((domain, hot), field_), _ in zip(field_of.items(), session.steps(labels)):
        for competitor in field_:
            competitor.run([Ask(prompts.load(domain)[0], 8, hot, domain=domain)], 1, tenant="warm-up")


def _repetition(
    session: Session,
    measured: Measured,
    repetition: int,
    repetitions: int,
    field_of: Mapping[tuple[str, float], list[Competitor]],
    each: int,
) -> None:
    """This repetition's prompts of every domain, each to every contestant."""
    longest = session.notes["output_tokens"]
    asks = []
    for domain, hot in field_of:
        texts = workload.by_repetition(domain, repetitions, each, seed=session.wanted.seed)[repetition]
        seeds = range(repetition * each, (repetition + 1) * each)
        asks += [Ask(text, longest, hot, seed, domain) for seed, text in zip(seeds, texts)]
    labels = [f"repetition {repetition + 1}: {ask.domain} at temperature {ask.temperature:g}" for ask in asks]
    for index, (ask, _) in enumerate(zip(asks, session.steps(labels))):
        field_ = field_of[ask.domain, ask.temperature]
        answers = {}
        for competitor in workload.shuffled(field_, session.wanted.seed, repetition, index):
            tenant = f"{repetition} {index} {competitor.name}"  # finds nothing of the others' in any cache
            answers[competitor.name] = competitor.run([ask], 1, tenant=tenant).answers[0]
        measured.prompts[ask.temperature, ask.domain, repetition].append(answers)


def _with_trees(settings: profile.Profile, options: Options, folder: Path) -> Options:
    """Where the width of candidate trees is set: a profile of its own, until a request can ask for one."""
    path = derive(settings, folder / "trees.toml", speculation={"width": contestants.TREE_WIDTH})
    return replace(options, profile=str(path))


def _without(settings: profile.Profile, options: Options, folder: Path) -> Options:
    return replace(options, profile=str(with_drafters(settings, folder / "without.toml", (), policy="off")))


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """The table, and throughput over draft depth as a picture."""
    keys = ("best_static_over_off", "best_static_over_hf_generate", "best_static_over_hf_assisted")
    parts: dict[str, JsonDict] = {OVERALL: result[OVERALL], "overall, temperature 1": result["overall_t1"]}
    for domain in (d for d in prompts.DOMAINS if d in result):
        parts |= {domain: result[domain], f"{domain}, temperature 1": result[domain]["t1"]}
    rows = [
        [
            name,
            *(report.number(part[key]) for key in keys),
            ", ".join(part["picked"] or ()) or "-",
            str(part["looping"]),
        ]
        for name, part in parts.items()
    ]
    columns = ["", "over off", "over generate", "over assisted", "picked", "loops left out"]
    console.print(report.table("The best static choice", columns, rows))
    console.print(f"coupled over rejection, acceptance: {report.number(result['coupled_over_rejection_acceptance'])}")
    console.print(f"off over a server without drafters: {report.number(result['off_over_without_drafters'], 3)}")
    depths = {0: OFF, **{depth: fixed(depth) for depth in DEPTHS}}
    lines = {name: _curve(part["tokens_per_second"], depths) for name, part in parts.items()}
    axes = ("drafted tokens per round", "tokens per second")
    report.curves(picture, title="Fixed speculation at concurrency 1", lines=lines, axes=axes)


def _curve(rates: JsonDict, depths: Mapping[int, str]) -> dict[float, Spread]:
    found = {float(depth): report.from_json(rates.get(name)) for depth, name in depths.items()}
    return {depth: spread for depth, spread in found.items() if spread is not None}


def _picked(best: Best | None) -> list[str] | None:
    return list(best.picked) if best else None


def _rate(answers: list[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)
