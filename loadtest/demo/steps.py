"""Plays the demo's steps, a function for each: it asks a running server, and makes charts of the server's reports."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean, median

from covey import prompts
from covey.supervision import processes
from loadtest.bench.work import Ask
from loadtest.charts import Chart, Points
from loadtest.demo import answer
from loadtest.demo.stage import LOOK_SECONDS, Answered, Look, NotSeen, Stage
from loadtest.pictures import GENERATED

CALLERS = (1, 2, 4, 8, 16, 32)
CALM = 2  # callers
ALWAYS = "fixed:4"  # for requests that ask for drafts at any load
LONG, LONG_OUTPUT, LONG_CALLERS = 400, 96, 32  # tokens of a prompt and of its answer
KNOWN = 1000  # tokens that every bundled tokenizer has
URGENT = "interactive"


@dataclass(frozen=True)
class Shown:
    """Holds what a step found: a sentence with its figures, its charts, and other HTML."""

    sentence: str
    charts: Sequence[Chart]
    html: str = ""


def depth(stage: Stage) -> Shown:
    """Ask with more and more callers."""
    ask = _mixed(stage)
    with ExitStack() as callers:
        for before, count in zip((0, *CALLERS), CALLERS):
            callers.enter_context(stage.asking(count - before, ask))
            stage.wait(f"{count} callers" if count > 1 else "1 caller", 4)
        few = [_depth(look) or 0.0 for look in stage.looks if 0 < _running(look) <= CALLERS[1]]
        many = [_depth(look) or 0.0 for look in stage.looks if _running(look) >= CALLERS[-2]]
    return Shown(
        f"At {CALLERS[1]} requests or fewer the planner has {_mean(few)} tokens drafted in a round, from "
        f"{CALLERS[-2]} on {_mean(many)}: drafts are cheap while there is room, and cost every caller time if there is "
        "none.",
        [
            _chart(stage, "Load", "requests that run", {"": stage.points(_running)}),
            _chart(stage, "Depth, as chosen at every round", "tokens drafted", {"": stage.points(_depth)}),
        ],
    )


def same_answer(stage: Stage) -> Shown:
    """Ask the same question without and with drafts, for two kinds of text, when the server has learned from others."""
    drawn, said = [], []
    with stage.asking(1, _mixed(stage)):
        stage.wait("the server learns from questions", 10)
    for domain in ("code", "edits"):
        plain, drafted = sides = (
            stage.written("without drafts", domain, speculation="off"),
            stage.written("with drafts", domain),
        )
        drawn.append(answer.replay(sides))
        answer.picture(sides, stage.out / f"{domain}.png")
        said.append(f"{domain}: {plain.seconds:.1f} s without, {drafted.seconds:.1f} s with drafts")
    return Shown(f"The same text, sooner ({'; '.join(said)}). Green tokens were drafted.", [], "".join(drawn))


def urgent(stage: Stage) -> Shown:
    """Let long requests take all places; short ones come, first without a class, then as class interactive."""

    def long(number: int) -> Ask:
        return Ask("", LONG_OUTPUT, 1.0, number, ids=tuple(random.Random(number).choices(range(3, KNOWN), k=LONG)))

    with stage.asking(LONG_CALLERS, long):
        stage.wait(f"{LONG_CALLERS} long", 4)
        for name, settings in (("no class", {}), (URGENT, {"slo_class": URGENT})):
            with stage.asking(2, stage.ask("code", **settings)):
                stage.wait(f"short, {name}", 10)
    shown = {
        "short, no class": [each for each in stage.answers if each.ask.domain and not each.ask.settings],
        f"short, {URGENT}": [each for each in stage.answers if each.ask.settings],
        "long": [each for each in stage.answers if not each.ask.domain],
    }
    first, each = ({name: _times(found, of) for name, found in shown.items()} for of in ("ttft_ms", "tpot_ms"))
    found = [median(ms for _, ms in lines[name]) for lines in (first, each) for name in list(shown)[:2]]
    target, hurried = stage.objective(URGENT), shown[f"short, {URGENT}"]
    kept = sum(each.answer.slo_attainment == "met" for each in hurried)
    for lines, of in ((first, "ttft"), (each, "tpot")):
        lines["objective"] = [(lines["long"][0][0], target[of]), (lines["long"][-1][0], target[of])]
    return Shown(
        f"A short request has its first token after {found[0]:.0f} ms (median) where it waits its turn, and after "
        f"{found[1]:.0f} ms as class {URGENT} (objective {target['ttft']:.0f} ms); each further one takes "
        f"{found[2]:.1f} and {found[3]:.1f} ms (objective {target['tpot']:.1f} ms), since long prompts are read no "
        f"faster than it can bear. {kept} of {len(hurried)} had both.",
        [
            _chart(stage, "First token", "ms", first, log=True),
            _chart(stage, "Each further token", "ms", each),
        ],
    )


def death(stage: Stage) -> Shown:
    """Kill the busiest drafter under load."""
    with stage.asking(CALM, stage.ask("code", speculation=ALWAYS)):
        stage.wait("code is asked for", 6)
        running = processes.named(stage.server.pid)
        victim = _favourite(stage.looks, running)
        if victim not in running:
            raise NotSeen("no drafter's process had drafted when the demo wanted to kill one")
        os.kill(running[victim], signal.SIGKILL)

        def back(look: Look) -> bool:
            """Return whether it has drafted since; a look's states may be older than the notice of its death."""
            return look.span.before.at > stage.marks[-1][0] and look.drafted.get(victim, 0.0) > 0

        stage.wait(f"{victim} killed", 0, back)
        stage.wait("back", 6)
    (_, (died, _), (came, _)) = stage.marks
    between = [look for look in stage.looks if died + LOOK_SECONDS < look.at < came]
    return Shown(
        f"{victim} was killed with SIGKILL and drafted again {came - died:.1f} s later; meanwhile "
        f"{_favourite(between)} drafted most for requests, which ask for drafts ({ALWAYS}), and none failed.",
        [
            _chart(stage, "Who drafts", "% of drafted tokens", _shares(stage)),
            _chart(
                stage,
                "All callers together",
                "tokens/s",
                {"": stage.points(lambda look: look.span.rate(GENERATED))},
            ),
        ],
    )


def _mixed(stage: Stage, **settings: object) -> Callable[[int], Ask]:
    asks = [stage.ask(domain, **settings) for domain in prompts.DOMAINS]
    return lambda number: asks[number % len(asks)](number)


def _chart(stage: Stage, title: str, unit: str, lines: dict[str, Points], *, log: bool = False) -> Chart:
    return Chart(title, unit, lines, log=log, marks=tuple(stage.marks))


def _times(answers: Sequence[Answered], of: str) -> Points:
    """Return the times as the server measured them."""
    return sorted((each.at, getattr(each.answer.usage, of)) for each in answers)


def _running(look: Look) -> float:
    return float(look.rounds[-1].running) if look.rounds else 0.0


def _depth(look: Look) -> float | None:
    return fmean(each["depth"] for each in look.decisions) if look.decisions else None


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f}" if values else "-"


def _shares(stage: Stage) -> dict[str, Points]:
    def share(look: Look, name: str) -> float | None:
        drafted = look.drafted
        return 100 * drafted.get(name, 0.0) / whole if (whole := sum(drafted.values())) else None

    names = sorted({name for look in stage.looks for name in look.drafted})
    return {name: stage.points(lambda look, name=name: share(look, name)) for name in names}  # type: ignore[misc]


def _favourite(looks: Sequence[Look], among: Collection[str] = ()) -> str:
    """Return the drafter that drafted most, of those named or of all; "no drafter" if none did."""
    drafted = sum((Counter(look.drafted) for look in looks), Counter[str]())
    names = [name for name in drafted if name in among or not among]
    return max(names, key=lambda name: drafted[name], default="no drafter")
