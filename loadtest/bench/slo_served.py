"""The load of `slo` on the real server: the bundled models, and one emulated point in real time beside virtual time.

Every system has a server of its own, one after the other, and is asked over gRPC with streams. What clients measure
counts: TTFT from when a request was due, TPOT from its first token on. The bundled models' rates are shares of the
requests a second that plain decoding serves, and the urgent objective is 1.2 times what a token of one request alone
takes plainly; both are measured first. Requests say how many tokens they get, and share no prefix.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from covey import profile, prompts
from covey.objectives import Classes, judge
from covey.profile import Profile
from covey.types import Attainment, JsonDict, Objective
from covey_client.costs.table import CostTable
from loadtest.bench.derive import derive, with_drafters
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.session import QUICK, Session
from loadtest.bench.slo_serving import (
    GUESSES,
    MAX_DEPTH,
    SUBJECTS,
    SYSTEMS,
    Asked,
    Point,
    System,
    objectives,
    opening,
    play,
    prompt_of,
)
from loadtest.bench.statistics import percentile
from loadtest.bench.work import Answer, Ask, Run

BUNDLED = ("off", "fixed:1", "fixed:3", "covey, no objectives", "adaserve", "covey")
QUICK_SYSTEMS = ("off", "covey")
WIDTH = 2  # of the bundled pair's trees: a lane costs what a row does
LEVELS, SECONDS, QUICK_SECONDS = (0.6, 0.9, 1.2), 30.0, 4.0
CALLERS, PROBED, QUICK_PROBED = 16, 48, 8  # who asks, and how often, to see how many requests a second can be served
ALONE = 3  # requests that tell what a token takes an idle server
DOMAINS = dict(zip(SUBJECTS, ("code", "chat", "summarisation")))
LETTERS = 3  # of a token, or more
LONGEST = 1400  # tokens of a prompt: there are 2,048 positions
PAIR, RATE, REQUESTS = "emulated-70b-4x80g", 6.0, 120
CHECKED = ("off, chunks of 512", "covey, no objectives", "covey")

Loads = Callable[[float, int], Sequence[Asked]]  # a rate, and how many requests
Add = Callable[[float, str, Point], None]  # a rate, a system


@dataclass(frozen=True, slots=True)
class Sent:
    """What is to be served to all systems, and by which measure."""

    load: Sequence[Asked]
    asks: Sequence[Ask]  # of the same requests
    wanted: Mapping[str, Objective]

    def by(self, system: System) -> list[Ask]:
        """As this system is told of them."""
        if system.blind:
            return list(self.asks)
        told = {
            kind: {"slo_class": kind, "slo_ttft_ms": 1000 * each.ttft, "slo_tpot_ms": 1000 * each.tpot}
            for kind, each in self.wanted.items()
        }
        return [replace(ask, settings={**ask.settings, **told[each.kind]}) for ask, each in zip(self.asks, self.load)]

    def judged(self, run: Run) -> Point:
        """Who met its objective."""
        answers = list(zip(self.load, run.answers))
        met = [(each, answer) for each, answer in answers if _met(answer, self.wanted[each.kind].tpot)]
        rounds = sum(len(answer.tokens) - answer.accepted for answer in run.answers)
        return Point(
            requests=len(answers),
            met=len(met),
            met_both=sum(_first(answer) <= self.wanted[each.kind].ttft for each, answer in met),
            by_class={
                kind: (sum(each.kind == kind for each, _ in met), sum(each.kind == kind for each in self.load))
                for kind in SUBJECTS
            },
            good_tokens=sum(len(answer.tokens) for _, answer in met),
            seconds=run.seconds,
            ttft_p99=percentile([_first(answer) for answer in run.answers], 0.99) or 0.0,
            accepted=sum(answer.accepted for answer in run.answers) / max(1, rounds),
            drafted=sum(answer.drafted for answer in run.answers) / max(1, rounds),
            drafting_seconds=0.0,
            reliability=(),
        )


def bundled(session: Session, loads: Loads, add: Add) -> JsonDict:
    """Every system at every rate, on the bundled models; what was measured of them alone."""
    settings, quick = profile.load(profile.DEFAULT_PROFILE), session.wanted.size == QUICK
    systems = [_named(name) for name in (QUICK_SYSTEMS if quick else BUNDLED)]
    found: list[tuple[float, Sent]] = []
    alone: JsonDict = {}
    with tempfile.TemporaryDirectory() as folder:
        for system, _ in zip(systems, session.steps([f"bundled, {system.name}" for system in systems])):
            path = with_drafters(
                settings,
                Path(folder) / "slo.toml",
                settings.speculation.drafters[:1],
                policy=system.policy,
                selection=system.selection,
                width=min(WIDTH, system.width),
            )
            with session.server(replace(session.wanted.options(), profile=str(path))) as server:
                asks = OverTriton(server, system.name, stream=True)
                if not found:
                    alone = _alone(asks, loads, QUICK_PROBED if quick else PROBED)
                    wanted = _objectives(settings, alone["unloaded_tpot"])
                    for level in LEVELS[1:2] if quick else LEVELS:
                        rate = level * alone["capacity"]
                        load = loads(rate, max(6, round(rate * (QUICK_SECONDS if quick else SECONDS))))
                        found.append((rate, Sent(load, _texts(load, session.wanted.seed), wanted)))
                for rate, sent in found:
                    run = asks.offer(sent.by(system), [each.at for each in sent.load], f"{rate:.3f}")
                    add(round(rate, 3), system.name, sent.judged(run))
                asks.close()
    return alone


def in_real_time(session: Session, loads: Loads) -> JsonDict:
    """One emulated point by virtual time and through the real server, system by system."""
    settings, seed = profile.load(PAIR), session.wanted.seed
    table = CostTable.load(profile.costs_file(settings.emulated.costs))
    load = loads(RATE, 12 if session.wanted.size == QUICK else REQUESTS)
    asks = [
        Ask("", each.output, seed=key, ids=tuple(prompt_of(key, each).tolist()), settings=_whole(each))
        for key, each in enumerate(load)
    ]
    sent = Sent(load, asks, objectives(settings, table))
    systems = [_named(name) for name in (CHECKED[-1:] if session.wanted.size == QUICK else CHECKED)]
    found: JsonDict = {"rate": RATE, "requests": len(load), "systems": {}}
    with tempfile.TemporaryDirectory() as folder:
        guesses = _guesses(Path(folder) / "guesses.json")
        for system, _ in zip(systems, session.steps([f"in real time, {system.name}" for system in systems])):
            path = derive(
                settings,
                Path(folder) / "slo.toml",
                speculation={
                    "policy": system.policy,
                    "max_depth": MAX_DEPTH,
                    "width": system.width,
                    "selection": system.selection,
                },
                scheduler={"token_budget": system.token_budget or settings.scheduler.token_budget},
                emulated={"guesses": str(guesses)},
            )
            with session.server(replace(session.wanted.options(), profile=str(path))) as server:
                over = OverTriton(server, system.name, stream=True)
                real = sent.judged(over.offer(sent.by(system), [each.at for each in load], "real"))
                over.close()
            virtual = play(PAIR, system, load, seed)
            found["systems"][system.name] = {
                "virtual": _figures(virtual),
                "real": _figures(real),
            }
    return found


def _named(name: str) -> System:
    return next(system for system in SYSTEMS if system.name == name)


def _figures(point: Point) -> JsonDict:
    return {
        "attainment": point.attainment,
        "goodput": point.goodput,
        "ttft_p99": point.ttft_p99,
        "accepted_per_verification": point.accepted,
    }


def _alone(asks: OverTriton, loads: Loads, count: int) -> JsonDict:
    """What a token takes one request, and how many requests a second `CALLERS` get, on a server without drafts."""
    load = loads(1.0, count)
    texts = _texts(load, 0)
    single = [asks.run([ask], 1, f"alone {place}").answers[0] for place, ask in enumerate(texts[:ALONE])]
    unloaded = median(_tpot(answer) for answer in single)
    done = asks.run(texts, CALLERS, "capacity")
    return {"unloaded_tpot": unloaded, "capacity": len(done.answers) / done.seconds}


def _objectives(settings: Profile, unloaded: float) -> dict[str, Objective]:
    classes = Classes(settings.slo.classes, lambda: unloaded)
    return {kind: classes.objective(kind, 0.0, 0.0) for kind in SUBJECTS}


def _texts(load: Sequence[Asked], seed: int) -> list[Ask]:
    """Prompts of each class's domain, about as long as they should be."""
    found = []
    for key, each in enumerate(load):
        rng, listed = random.Random(f"{seed} {key}"), prompts.load(DOMAINS[each.kind])
        text, length = f"{rng.randrange(10**6)}. ", LETTERS * min(each.prompt, LONGEST)
        while len(text) < length:
            text += rng.choice(listed) + "\n"
        found.append(
            Ask(text[: max(12, length)], each.output, 1.0, seed=key, domain=DOMAINS[each.kind], settings=_whole(each))
        )
    return found


def _whole(each: Asked) -> dict[str, object]:
    return {"min_tokens": each.output}


def _guesses(path: Path) -> Path:
    """The recorded guesses, by the token that each class's prompts begin with."""
    table = json.loads(Path(profile.guesses_file(GUESSES)).read_text(encoding="utf-8"))
    table["subjects"] |= {f"@{opening(kind)}": table["subjects"][subject] for kind, subject in SUBJECTS.items()}
    path.write_text(json.dumps(table), encoding="utf-8")
    return path


def _first(answer: Answer) -> float:
    return answer.seconds if answer.first is None else answer.first


def _tpot(answer: Answer) -> float:
    return (answer.seconds - _first(answer)) / max(1, len(answer.tokens) - 1)


def _met(answer: Answer, tpot: float) -> bool:
    """By the time per token alone, as published."""
    return judge(Objective("", tpot=tpot), None, _tpot(answer)) is Attainment.MET
