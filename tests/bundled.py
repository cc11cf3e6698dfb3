"""The bundled models in process: many requests, each drafted in its own way, through one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from covey import prompts
from covey.contracts import profile
from covey.contracts.ports import Drafter
from covey.contracts.types import Ints, Request, Sampling
from covey.drafters import load_drafter
from covey.loop.configuration import EngineHooks
from covey.planner.planner import Planner
from covey.requests.roster import Roster
from covey.requests.rounds import Plan, RoundRecord
from covey.requests.scheduler import Batch
from covey.target.runner import TargetRunner
from covey.text.tokenization import load_tokenizer
from tests.engines import engine_to, finish
from tests.fakes import Collector, request
from tests.static_planner import StaticPlanner

MODELS = Path(__file__).resolve().parents[1] / "model_repository"
NEURAL = ("draft_general", "draft_code")
DRAFTERS = (*NEURAL, "draft_ngram", "draft_suffix")
SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=0.7, top_p=0.9),
    "hot": Sampling(temperature=1.0, top_p=0.95),
}
MAX_DEPTH, MAX_WIDTH, MAX_BATCH = 8, 4, 32
SETTINGS = profile.with_tokens(profile.load("demo-cpu"), 1 << 16)
if torch.cuda.is_available():  # where that is not what comes by itself
    SETTINGS = replace(SETTINGS, target=replace(SETTINGS.target, numerics="invariant"))
BUDGET = MAX_BATCH * (1 + MAX_DEPTH * MAX_WIDTH) + 224  # the largest trees for a full batch, and prompts beside them
PROMPTS = sum(len(prompts.load(domain)) for domain in prompts.DOMAINS)

Outputs = list[list[int]]


@dataclass(frozen=True)
class Case:
    """One request: which prompt, drawn how, drafted how."""

    number: int
    sampling: str
    drafter: str = ""
    depth: int = 0
    width: int = 1


DRAFTED = (  # a chain, a tree, and a tree that was looked up
    Case(0, "", "draft_general", 4),
    Case(0, "", "draft_general", 3, 3),
    Case(0, "", "draft_suffix", 4, 2),
)


class Wishes(StaticPlanner):
    """Drafts each request as its case wishes; `granted` is the most that each got at once."""

    def __init__(self, cases: Mapping[int, Case]) -> None:
        super().__init__(0, MAX_WIDTH)
        self._cases = cases
        self.granted: dict[int, tuple[int, int]] = {}

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        laid_out = super().plan(batch, roster, budget)
        wanted = np.array([self._cases[active.key].width for active in batch.rows], np.int32)
        choice = replace(laid_out, width=np.minimum(laid_out.width, wanted))
        for active, depth, width in zip(batch.rows, choice.depth.tolist(), choice.width.tolist()):
            self.granted[active.key] = max(self.granted.get(active.key, (0, 1)), (depth, width))
        return choice


@cache
def target() -> TargetRunner:
    return TargetRunner.load(MODELS / "target" / "1", SETTINGS.target, token_budget=BUDGET, name="target")


@cache
def drafter(name: str) -> Drafter:
    kind = "neural" if name in NEURAL else name.removeprefix("draft_")
    return load_drafter(kind, MODELS / name / "1", MODELS / "target" / "1", SETTINGS, name=name)


@cache
def texts() -> list[Ints]:
    """All bundled prompts, the domains taking turns."""
    tokenizer = load_tokenizer(MODELS / "target" / "1")
    assert tokenizer is not None
    turns = zip(*(prompts.load(domain) for domain in prompts.DOMAINS))
    return [np.asarray(tokenizer.encode(text).ids, np.int32) for turn in turns for text in turn]


def serve(
    planner: Planner, requests: Sequence[Request], drafters: Sequence[str] = (), batch: int = MAX_BATCH
) -> tuple[Collector, list[RoundRecord]]:
    """What an engine makes of the requests, with up to `batch` of them in flight."""
    sink, records = Collector(), list[RoundRecord]()
    limits = {"max_running": batch, "max_waiting": len(requests), "token_budget": BUDGET, "growth_tokens": 64}
    limits["block_size"] = SETTINGS.target.block_size
    known, hooks = {name: drafter(name) for name in drafters}, EngineHooks(observe=records.append)
    finish(engine_to(sink, target(), planner, known, hooks=hooks, **limits), requests)
    target().check()
    return sink, records


def drafted(requests: Sequence[Request], case: Case) -> Collector:
    """What an engine makes of the requests, all of which are drafted as the case says."""
    how = {"speculation": f"fixed:{case.depth}", "drafter": case.drafter}
    asked = [replace(each, **how) for each in requests]
    return serve(Wishes(dict.fromkeys([each.key for each in asked], case)), asked, [case.drafter])[0]


def generate(cases: Sequence[Case], length: int, batch: int) -> Outputs:
    """The cases' outputs, from an engine with up to `batch` of them in flight; prompt n is seeded with n."""
    numbered = dict(enumerate(cases, start=1))
    drafters = {case.drafter: None for case in cases if case.drafter}
    planner, asked = Wishes(numbered), []
    for key, case in numbered.items():
        sampling = replace(SAMPLINGS[case.sampling], seed=case.number, end_ids=target().info().end_ids)
        speculation = f"fixed:{case.depth}" if case.depth else "off"
        prompt = texts()[case.number]
        asked.append(request(key, prompt, length, sampling=sampling, speculation=speculation, drafter=case.drafter))
    sink, records = serve(planner, asked, list(drafters), batch)
    assert max(record.decoding for record in records) == min(batch, len(cases))
    for key, case in numbered.items():
        if len(sink.tokens[key]) > 1:
            assert planner.granted[key] == (case.depth, case.width), f"{case} was not drafted so"
    for name in drafters:
        drafted = (sink.ended[key].drafted for key, case in numbered.items() if case.drafter == name)
        assert sum(drafted) > 0, f"{name} drafted nothing"
    return [sink.tokens[key] for key in numbered]


def plainly(requests: Sequence[tuple[Ints, Sampling]], length: int) -> Outputs:
    """What the target alone makes of the prompts."""
    asked = [request(key, prompt, length, sampling=sampling) for key, (prompt, sampling) in enumerate(requests)]
    sink, _ = serve(StaticPlanner(0, 1), asked)
    return [sink.tokens[key] for key in range(len(requests))]
