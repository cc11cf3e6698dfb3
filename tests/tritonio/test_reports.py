"""What the orchestrator tells of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from covey.contracts.errors import BadField
from covey.contracts.ports import Residency
from covey.contracts.profile import Profile
from covey.kv.elastic import Budget, Never
from covey.loop.configuration import EngineHooks
from covey.loop.memory import Memory
from covey.planner.build import build
from covey.process.worker import Thread
from covey.requests.roster import Roster
from covey.tritonio.reports import Reports
from tests.engines import engine_to, finish
from tests.fakes import Collector, HashTarget, ManualClock, request


class Serving:
    """An engine over fakes that reports its rounds."""

    def __init__(self) -> None:
        self.target, profile, clock = HashTarget(), Profile("mine"), ManualClock()
        planner, roster = build(profile.speculation, (), max_rows=8), Roster(["draft_mine"], clock)
        house = self.target, cast("Residency", None), roster, clock, Never(), Budget(10, 0)
        memory = Memory(*house, worker=Thread("residency"), drop=print, breathes=False)
        facts = planner.decisions.plain, self.target.info(), profile, roster.states, memory
        self.reports = Reports(*facts, "open sesame")
        hooks = EngineHooks(observe=self.reports.round)
        self.engine = engine_to(Collector(), self.target, planner, clock=clock, hooks=hooks)

    def run(self, key: int, tokens: int) -> None:
        finish(self.engine, [request(key, [5, 6, 7], tokens)])

    def answer(self, question: str) -> Any:
        return json.loads(self.reports.answer(question))


def test_facts_say_what_is_served_and_no_path() -> None:
    facts = Serving().answer("facts")
    assert facts["model"] == "hash"
    assert facts["profile"] == "mine"
    assert (facts["drafters"], facts["states"]) == (["draft_mine"], {"draft_mine": "serving"})
    assert facts["token_budget"] == Profile("mine").scheduler.token_budget
    assert "folder" not in facts


@pytest.mark.parametrize(("action", "wish"), [("load", "auto"), ("unload", "out"), ("pin", "pinned")])
def test_who_has_the_secret_decides_who_is_in_memory(action: str, wish: str) -> None:
    serving = Serving()
    told = json.loads(serving.reports.answer(f"{action}:draft_mine", "open sesame"))
    assert told["drafters"]["draft_mine"]["wish"] == wish
    with pytest.raises(BadField, match="draft_mine"):
        serving.reports.answer(f"{action}:draft_other", "open sesame")


@pytest.mark.parametrize(("own", "given"), [("open sesame", ""), ("open sesame", "open"), ("", "")])
def test_nobody_else_does(own: str, given: str) -> None:
    serving = Serving()
    serving.reports._secret = own
    with pytest.raises(BadField, match="admin_secret"):
        serving.reports.answer("unload:draft_mine", given)
    assert serving.answer("memory")["drafters"]["draft_mine"]["wish"] == "auto"


def test_the_pool_is_as_large_as_it_is_now() -> None:
    serving = Serving()
    serving.run(1, 4)
    before = serving.answer("facts")["total_blocks"]
    assert serving.target.resize(before + 7).total_blocks == before + 7
    serving.run(2, 4)
    assert serving.answer("facts")["total_blocks"] == serving.engine.total_blocks == before + 7


def test_rounds_are_numbered_and_told_from_any_number_on() -> None:
    serving = Serving()
    assert serving.answer("rounds") == {"last": 0, "rounds": []}
    serving.run(1, 4)
    found = serving.answer("rounds:0")
    rounds: list[Mapping[str, Any]] = found["rounds"]
    assert [each["round"] for each in rounds] == list(range(1, len(rounds) + 1))
    assert found["last"] == len(rounds)
    assert [each["decoding"] for each in rounds[:4]] == [0, 1, 1, 1]
    assert rounds[0]["prefill_tokens"] == 3
    assert serving.answer(f"rounds:{len(rounds) - 1}")["rounds"] == rounds[-1:]
    assert serving.answer("rounds:1000") == {"last": len(rounds), "rounds": []}


@pytest.mark.parametrize(
    "question", ["", "facts:1", "memory:1", "decisions:-1", "rounds:x", "secrets", "rounds:" + "9" * 16]
)
def test_other_questions_are_refused(question: str) -> None:
    with pytest.raises(BadField, match="inspect"):
        Serving().reports.answer(question)
