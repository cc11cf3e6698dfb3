"""Plays one emulated server whose requests have latency objectives, in virtual time, and returns their outcomes.

Requests are urgent (a copilot), chats and summaries. Their lengths are those of AdaServe's data sets, as remembered:
HumanEval, Alpaca, CNN/DailyMail. Guesses are those recorded on the bundled pair. The planner starts from curves
measured with noise; devices sleep by the table. Every number from here is a simulation's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.contracts import profile
from covey.contracts.objectives import Classes, judge
from covey.contracts.profile import Profile
from covey.contracts.types import Attainment, Finish, Ints, Objective, Request, Sampling
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.guesses import Guesses
from covey.planner.build import build
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable
from loadtest.bench.emulated_pairs import EmulatedPair, draw_length
from loadtest.bench.emulated_serving import MODEL, Ran, run
from loadtest.bench.statistics import percentile
from loadtest.simulation.virtual import VirtualClock

URGENT, CHAT, SUMMARY = "interactive", "chat", "batch"
SUBJECTS = {URGENT: "code", CHAT: "chat", SUMMARY: "summary"}
LENGTHS = {URGENT: (150, 120, 0.4), CHAT: (20, 120, 0.6), SUMMARY: (900, 90, 0.4)}  # prompt, output, spread
GUESSES = profile.profiles_folder() / "acceptance" / "bundled.json"
NOISE = 0.05  # of a measured time
MAX_DEPTH, WIDTH = 6, 4
ADASERVE = ("b1=128", "b2=32", "c1=20", "n_max=4")  # the best of twelve tried at 6 requests/s on other requests
TUNED = 160  # tokens of a pass that cost these devices no extra time: an operator could find and set this


@dataclass(frozen=True, slots=True)
class SloSystem:
    """Describes a way to serve. Blind systems do not know the objectives, but are judged by them."""

    name: str
    policy: str
    blind: bool = True
    selection: str = "all"
    width: int = 1
    token_budget: int = 0  # of a pass; 0: the profile's, which fits whole prompts
    adaserve: tuple[str, ...] = ()


SYSTEMS = (
    SloSystem("off", "off"),
    SloSystem("off, chunks of 512", "off", token_budget=512),
    *(SloSystem(f"fixed:{depth}", f"fixed:{depth}") for depth in range(1, 6)),
    SloSystem("adaptive, no objectives", "adaptive"),
    SloSystem("adaptive, no objectives, trees", "adaptive", selection="worth", width=WIDTH),
    SloSystem("off, tuned chunks", "off", token_budget=TUNED),
    SloSystem("adaptive, no objectives, tuned chunks", "adaptive", token_budget=TUNED),
    SloSystem("adaserve", "adaserve", blind=False, width=WIDTH, adaserve=ADASERVE),
    SloSystem("adaserve, tuned chunks", "adaserve", blind=False, width=WIDTH, token_budget=TUNED, adaserve=ADASERVE),
    SloSystem("adaptive", "adaptive", blind=False, selection="worth", width=WIDTH),
)


@dataclass(frozen=True, slots=True)
class SloRequest:
    """Describes one request before it is made."""

    at: float
    kind: str
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Point:
    """Holds one system's result for one load."""

    requests: int
    met: int
    by_class: Mapping[str, tuple[int, int]]  # met, of
    good_tokens: int
    seconds: float
    ttft_p99: float
    accepted: float  # drafted tokens per verification of a row

    @property
    def attainment(self) -> float:
        return self.met / self.requests

    @property
    def goodput(self) -> float:
        return self.good_tokens / self.seconds


def asked(times: Sequence[float], shares: Mapping[str, float], seed: int) -> list[SloRequest]:
    """Return a request for each time, with a class drawn by these shares."""
    rng = random.Random(f"{seed} classes")
    kinds = rng.choices(list(shares), list(shares.values()), k=len(times))
    found = []
    for at, kind in zip(times, kinds):
        prompt, output, spread = LENGTHS[kind]
        found.append(SloRequest(at, kind, draw_length(prompt, spread, rng), draw_length(output, spread, rng)))
    return found


def objectives(settings: Profile, table: CostTable) -> dict[str, Objective]:
    """Return the classes' own objectives, the urgent one 1.2 times an idle server's time for a token."""
    verify, overhead = Surface(table.verify), dict(table.overhead)
    classes = Classes(settings.slo.classes, lambda: verify(1, 1) + overhead.get(1, 0.0))
    return {name: classes.objective(name, 0.0, 0.0) for name in SUBJECTS}


def measured(table: CostTable, seed: int) -> CostTable:
    """Return curves as a server measures them: other points than the table's, each with noise."""
    rng = np.random.default_rng([seed, 77])

    def noisy(seconds: float) -> float:
        return float(seconds * math.exp(rng.normal(0.0, NOISE)))

    verify, cells = Surface(table.verify), []
    for rows in (1, 4, 16, 64, 256):
        for each in (1, 2, 4, 8):
            cells.append((rows, rows * each, noisy(verify(rows, rows * each))))
    drafts = {
        name: tuple(
            (rows, depth, noisy(Surface(listed)(rows, depth))) for rows in (1, 8, 64, 256) for depth in (1, 3, 6)
        )
        for name, listed in table.draft.items()
    }
    return replace(table, name="measured", verify=tuple(cells), draft=drafts, plain=())


def play(
    pair: str,
    system: SloSystem,
    load: Sequence[SloRequest],
    seed: int,
    limit: float = math.inf,
) -> Point:
    """Serve the load; a request that has not ended after `limit` seconds is a violation."""
    emulated = EmulatedPair(pair)
    settings, table, (name,) = emulated.profile, emulated.table, emulated.drafters
    guesses = Guesses.load(GUESSES)
    subjects = {f"@{opening(kind)}": guesses.subject(subject) for kind, subject in SUBJECTS.items()}
    guesses = replace(guesses, subjects={**guesses.subjects, **subjects})
    clock, wanted = VirtualClock(), objectives(settings, table)
    budget = system.token_budget or settings.scheduler.token_budget
    settings = replace(settings, scheduler=replace(settings.scheduler, token_budget=budget))
    speculation = replace(
        settings.speculation,
        policy=system.policy,
        max_depth=MAX_DEPTH,
        width=system.width,
        selection=system.selection,
        adaserve=system.adaserve,
    )
    curves = measured(table, seed)
    planner = build(speculation, (name,), max_rows=settings.scheduler.max_running, costs=curves, seed=seed)
    target = EmulatedTarget(table, MODEL, clock, blocks=emulated.blocks, block_size=settings.target.block_size)
    drafter = EmulatedDrafter(table, MODEL, clock, name=name, rates={}, guesses=guesses)
    asked = [_request(key, each, system, wanted) for key, each in enumerate(load)]
    ran = run(settings, target, {name: drafter}, planner, clock, asked, until=limit)
    return _point(load, ran, wanted)


def opening(kind: str) -> int:
    """Return the first token of such a request's prompt, which names its subject: all are of one tenant."""
    return MODEL.low + list(SUBJECTS).index(kind)


def prompt_of(key: int, each: SloRequest) -> Ints:
    """Return a unique prompt that begins with its subject."""
    prompt = np.full(each.prompt, key % (MODEL.vocab_size - MODEL.low) + MODEL.low, np.int32)
    prompt[-1:] = key // (MODEL.vocab_size - MODEL.low) + MODEL.low
    prompt[0] = opening(each.kind)
    return prompt


def _request(key: int, each: SloRequest, system: SloSystem, wanted: Mapping[str, Objective]) -> Request:
    return Request(
        key,
        prompt_of(key, each),
        each.output,
        Sampling(),
        each.prompt,
        arrival=each.at,
        objective=Objective() if system.blind else wanted[each.kind],
    )


def _point(load: Sequence[SloRequest], ran: Ran, wanted: Mapping[str, Objective]) -> Point:
    sink, records, seconds = ran.sink, ran.records, ran.ended - load[0].at
    met: dict[str, int] = dict.fromkeys(SUBJECTS, 0)
    good, waits = 0, []
    for key, each in enumerate(load):
        waits.append(sink.first.get(key, load[0].at + seconds) - each.at)
        if sink.ended.get(key) is not Finish.LENGTH:
            continue
        count = sink.count[key]
        tpot = (sink.last[key] - sink.first[key]) / (count - 1) if count > 1 else None
        # A published objective limits only the time per token.
        if judge(replace(wanted[each.kind], ttft=math.inf), None, tpot) is Attainment.MET:
            met[each.kind] += 1
            good += count
    verified = sum(int(np.count_nonzero(record.sizes)) for record in records)
    of = {kind: sum(each.kind == kind for each in load) for kind in SUBJECTS}
    return Point(
        requests=len(load),
        met=sum(met.values()),
        by_class={kind: (met[kind], of[kind]) for kind in SUBJECTS},
        good_tokens=good,
        seconds=seconds,
        ttft_p99=percentile(waits, 0.99) or 0.0,
        accepted=sum(record.accepted for record in records) / max(1, verified),
    )
