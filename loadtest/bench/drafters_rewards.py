"""Part `rewards` of the bench `drafters`: what block divergence and block efficiency look like on the bundled models.

MetaSD's Table 2 and Figures 5 to 7: mean, variance and the share of zeros of both rewards, and their means by round.
One engine in this process drafts a fixed length, one request at a time, with a domain's specialist, the general drafter
and another domain's specialist. No times are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pvariance

import numpy as np
from rich.console import Console

from covey import profile, prompts
from covey.clock import RealClock
from covey.drafters.neural import NeuralDrafter
from covey.engine import Engine
from covey.planner.build import build
from covey.ports import Drafter, Target
from covey.scheduler import Scheduler
from covey.target.runner import TargetRunner
from covey.tokenization import load_tokenizer
from covey.types import (
    DrafterInfo,
    DraftReply,
    DraftWork,
    JsonDict,
    Progress,
    Request,
    Resized,
    Sampling,
    TargetInfo,
    TargetReply,
    TargetWork,
)
from loadtest.bench import report
from loadtest.bench.contestants import SPECIALISTS
from loadtest.bench.drafters_prompts import PARTNER
from loadtest.bench.policies import fixed
from loadtest.bench.session import FULL, QUICK, Session

LENGTH, TOKENS = 5, 96
TEMPERATURES = (0.0, 1.0)
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 6, 20, 1  # of each domain, drafter and temperature
ROUNDS = 40  # of a request, by which means are shown
GENERAL, OWN, OTHER = "general", "own", "other"
DIVERGENCE, EFFICIENCY = "divergence", "efficiency"


@dataclass
class Measured:
    """Rewards by temperature, domain, whose drafter it was and kind: a list for each request, in order of rounds."""

    rewards: dict[tuple[float, str, str, str], list[list[float]]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> JsonDict:
        found: JsonDict = {}
        for (temperature, domain, whose, kind), requests in self.rewards.items():
            at = found.setdefault(f"{temperature:g}", {}).setdefault(domain, {}).setdefault(whose, {})
            at[kind] = statistics(requests)
        return {"rewards": found} if found else {}


def statistics(requests: Sequence[Sequence[float]]) -> JsonDict | None:
    """Over all rounds of all requests, and by round."""
    whole = [reward for each in requests for reward in each]
    if not whole:
        return None
    by_round = [[each[at] for each in requests if at < len(each)] for at in range(ROUNDS)]
    return {
        "mean": fmean(whole),
        "variance": pvariance(whole),
        "zero_ratio": sum(reward == 0.0 for reward in whole) / len(whole),
        "rounds": len(whole),
        "by_round": [fmean(rewards) for rewards in by_round if rewards],
    }


class _Asked:
    """Implements `covey.ports.Target`: has block divergence said of every draft, and keeps both rewards."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.rewards: dict[str, list[float]] = {DIVERGENCE: [], EFFICIENCY: []}

    def info(self) -> TargetInfo:
        return self._target.info()

    def step(self, work: TargetWork) -> TargetReply:
        reply = self._target.step(replace(work, divergence=True))
        for size, accepted, alike in zip(work.trees.sizes.tolist(), reply.accepted.tolist(), reply.divergence.tolist()):
            if size and alike >= 0.0:
                self.rewards[EFFICIENCY].append(accepted / size)
                self.rewards[DIVERGENCE].append(alike)
        return reply

    def resize(self, blocks: int) -> Resized:
        return self._target.resize(blocks)


class _Shipping:
    """Implements `covey.ports.Drafter`: sends its distributions along."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def info(self) -> DrafterInfo:
        return self._drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        return self._drafter.draft(replace(work, q_rows=True))


class _Nowhere:
    """Implements `covey.ports.Sink`."""

    def publish(self, batch: Sequence[Progress]) -> None:
        """Nobody reads."""


def run(session: Session, measured: Measured) -> None:
    """Measure; results go into `measured` as they come."""
    wanted = session.wanted
    settings = profile.load(wanted.profile)
    folder, repository = wanted.target_folder(settings), wanted.options().repository_folder()
    scheduler = settings.scheduler
    target = TargetRunner.load(folder, settings.target, token_budget=scheduler.token_budget, name="target")
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    count = {QUICK: QUICK_REQUESTS, FULL: FULL_REQUESTS}.get(wanted.size, REQUESTS)
    domains = prompts.DOMAINS[:1] if wanted.size == QUICK else prompts.DOMAINS

    def drafter(name: str) -> _Shipping:
        where = settings.drafter.folder_of(name) or repository / name / "1"
        return _Shipping(NeuralDrafter.load(where, settings.drafter, name=name))

    drafters = {name: drafter(name) for name in ("draft_general", *SPECIALISTS.values())}
    steps = [(t, d) for t in TEMPERATURES for d in domains]
    for (temperature, domain), _ in zip(steps, session.steps([f"rewards: {d} at {t:g}" for t, d in steps])):
        whose = {OWN: SPECIALISTS[domain], GENERAL: "draft_general", OTHER: SPECIALISTS[PARTNER[domain]]}
        for key, text in enumerate(prompts.load(domain)[:count], start=1):
            for mine, name in whose.items():
                asked = _Asked(target)
                engine = Engine(
                    asked,
                    Scheduler(
                        max_running=1,
                        max_waiting=1,
                        token_budget=scheduler.token_budget,
                        growth_tokens=scheduler.growth_tokens,
                        block_size=target.info().block_size,
                    ),
                    build(replace(settings.speculation, policy=fixed(LENGTH)), (name,), max_rows=1),
                    _Nowhere(),
                    RealClock(),
                    drafters={name: drafters[name]},
                    draft_deadline=30.0,
                )
                ids = np.asarray(tokenizer.encode(text).ids, np.int32)
                sampling = Sampling(temperature, end_ids=target.info().end_ids, seed=key)
                engine.submit(Request(key, ids, TOKENS, sampling, len(ids)))
                while engine.round():
                    pass
                engine.stop()
                engine.run()  # returns at once, its threads ended
                for kind, rewards in asked.rewards.items():
                    measured.rewards[temperature, domain, mine, kind].append(rewards)


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """A table for each temperature, and means by round as a picture."""
    panels = []
    for temperature, domains in result["rewards"].items():
        rows = [
            [
                f"{domain}, {whose}, {kind}",
                *(report.number(found[key], 3) for key in ("mean", "variance", "zero_ratio")),
            ]
            for domain, by_drafter in domains.items()
            for whose, by_kind in by_drafter.items()
            for kind, found in by_kind.items()
            if found is not None
        ]
        title = f"Rewards at temperature {temperature}"
        console.print(report.table(title, ["", "mean", "variance", "zeros"], rows))
        for kind in (DIVERGENCE, EFFICIENCY):
            lines = {
                whose: list(enumerate(map(fmean, zip(*curves)), 1))
                for whose in (OWN, GENERAL, OTHER)
                if (curves := [d[whose][kind]["by_round"] for d in domains.values() if d[whose][kind] is not None])
            }
            shown = {whose: [(float(at), mean) for at, mean in line] for whose, line in lines.items()}
            panels.append(report.Panel(f"Block {kind} at temperature {temperature}", "round", "mean reward", shown))
    report.panels(picture, "Rewards by round, bundled models", panels)
