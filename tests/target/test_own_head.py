"""A head in the target's own process drafts as the head's own process would, and never changes a text."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.bandits.policy import Situation
from covey.contracts.errors import PortError
from covey.contracts.ports import Drafter
from covey.contracts.profile import DrafterSettings, Profile, SpeculationSettings, TargetSettings
from covey.contracts.types import DraftReply, DraftWork, Open, Rule, Sampling, TargetReply, TargetWork
from covey.drafters.neural import NeuralDrafter
from covey.loop.configuration import EngineHooks
from covey.planner.build import build
from covey.planner.round_planner import RoundPlanner
from covey.planner.switching import SwitchCosts
from covey.requests.roster import FIRST_OWN
from covey.requests.rounds import RoundRecord
from covey.runtimes import budget
from covey.target.opening import load_target
from covey.target.runner import TargetRunner
from tests.arrays import ints
from tests.engines import engine_to, finish
from tests.fakes import Collector, ManualClock, request
from tests.models import tiny_heads, tiny_models
from tests.models.tiny_heads import Formula
from tests.planner.test_round_planner import Listed
from tests.target.driver import Driver, Text

HEAD = "draft_head"
DRAFTER = DrafterSettings(dtype="float32", kv_blocks=64)
TARGET = TargetSettings(dtype="float32", device="cpu", kv_blocks=60, threads=1, head=HEAD)
RNG = np.random.default_rng(4)
PROMPTS = [RNG.integers(2, 97, length).tolist() for length in (40, 2, 17, 70)]
KINDS = [Sampling(), Sampling(temperature=0.8, top_p=0.9), Sampling(temperature=1.0, rule=Rule.REJECTION)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("models") / "target", "llama", **tiny_heads.TARGET)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_heads.build(tmp_path_factory.mktemp("models") / "head")


def opened(target: Path, head: Path, own: DrafterSettings = DRAFTER, **changes: Any) -> TargetRunner:
    settings = replace(TARGET, **changes)
    return TargetRunner.load(target, settings, token_budget=64, name="target", depth=4, head=str(head), own=own)


def states_of(runner: TargetRunner, tag: int, tokens: list[int]) -> torch.Tensor:
    """The target's own states of all of a text's positions but the last."""
    (sequence,) = (each for each in runner._ledger.states() if each.tag == tag)
    made = runner._maker.states(sequence.slots[: len(tokens) - 1])  # type: ignore[union-attr]
    return torch.from_numpy((made.astype(np.uint32) << 16).view(np.float32))


def after(text: Text, draft: int, chain: list[int] | tuple[int, ...] = ()) -> list[int]:
    """Return what the head drafts after a pass with this chain."""
    drafts: list[int] = text.go(draft, chain).draft_tokens.tolist()
    return drafts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_drafts_what_the_heads_own_process_would(temperature: float, target: Path, head: Path) -> None:
    """From the first token on, after rounds without drafts, and behind accepted and rejected ones."""
    runner, sampling = opened(target, head), Sampling(temperature, seed=5)
    assert runner.info().drafts_ahead
    apart = NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target)
    text, drafts, told = Text(runner, PROMPTS[0], sampling), list[int](), 0
    for round_, depth in enumerate([3, 4, 0, 0, 2, 4, 4, 1]):
        reply = text.go(depth, drafts)
        drafts = reply.draft_tokens.tolist()
        assert len(drafts) == depth
        if not depth:
            continue
        assert reply.draft_seconds > 0
        slots = next(iter(runner._ledger.states())).slots
        first, last = max(0, told - 1), len(text.tokens) - 1
        opening = Open(1, ints(*text.tokens), len(PROMPTS[0]), sampling)
        work = DraftWork(
            ints(1),
            ints(told or last + 1),
            ints(0, last + 1 - told if told else 0),
            ints(*(text.tokens[told:] if told else [])),
            ints(depth),
            ints(1),
            ints(round_ + 1),
            opens=() if told else (opening,),
            state_offsets=ints(0, last - first),
            states=runner._maker.states(slots[first:last]),  # type: ignore[union-attr]
        )
        assert drafts == apart.draft(work).trees.tokens.tolist()
        told = last + 1
    runner.check()


def test_the_next_pass_is_made_with_its_drafts_before_it_is_asked_for(target: Path, head: Path) -> None:
    runner = opened(target, head)
    passes, forward = list[int](), runner._model.forward_until  # type: ignore[union-attr]

    def counted(work: Any, stop: Any) -> Any:
        passes.append(len(work.tokens))
        return forward(work, stop)

    runner._model.forward_until = counted  # type: ignore[union-attr, method-assign]
    text, drafts = Text(runner, PROMPTS[0]), list[int]()
    for number in range(6):
        drafts = after(text, 3, drafts)
        runner._ahead._running.result()  # type: ignore[union-attr]
        assert passes == [4] * (number + 1), "one for each message: its result was taken"


def test_a_message_gets_the_answer_to_its_own_drafts(target: Path, head: Path) -> None:
    """The guess has the right drafts. The message asks for them, for some of them, for none or for wrong ones."""
    plain, runner = Text(opened(target, head), PROMPTS[0]), opened(target, head)
    for _ in range(30):
        plain.go()
    text = Text(runner, PROMPTS[0])

    def known(_rows: int, _wishes: object) -> dict[str, Any]:
        (sequence,) = runner._ledger.states()
        chain = plain.tokens[sequence.num_tokens : sequence.num_tokens + 3]
        return {"draft_offsets": ints(0, len(chain)), "draft_tokens": ints(*chain)}

    runner._own_head.draft = known  # type: ignore[union-attr, method-assign]
    drafts = after(text, 3)
    for altered, cut in ((False, 3), (True, 3), (False, 2), (False, 3), (True, 3), (False, 0), (True, 1), (False, 3)):
        sent = [(token + altered) % 97 for token in drafts[:cut]]
        reply = text.go(3, sent)
        assert reply.accepted.tolist() == [0 if altered else cut]
        assert len(reply.tokens) == 1 + int(reply.accepted[0])
        drafts = reply.draft_tokens.tolist()
    assert text.tokens == plain.tokens[: len(text.tokens)]


def test_it_drafts_no_deeper_than_a_text_may_grow_and_not_behind_its_end(target: Path, head: Path) -> None:
    text = Text(opened(target, head), PROMPTS[0], room=4)
    assert [len(after(text, 4)) for _ in range(4)] == [2, 1, 0, 0]
    (end,) = Text(opened(target, head), PROMPTS[0]).go().tokens.tolist()
    assert not after(Text(opened(target, head), PROMPTS[0], Sampling(end_ids=(end,))), 4)


def test_a_plain_message_that_asks_how_alike_drafts_are_takes_the_guess(target: Path, head: Path) -> None:
    """No draft says so, so no pass of its own is needed."""
    runner = opened(target, head)
    text = Text(runner, PROMPTS[0])
    text.go()
    found = runner._ahead._running  # type: ignore[union-attr]
    assert found is not None
    made = found.result()
    reply = text.step(1, divergence=True)
    assert made is not None
    assert reply.tokens.tolist() == made.verified.tokens.tolist()
    assert reply.seconds >= made.seconds
    assert reply.divergence.tolist() == [-1]
    assert runner._ahead._came_true == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("section", "change", "drafts"),
    [
        ("target", {}, True),
        ("target", {"drafts_ahead": False}, False),
        ("speculation", {"policy": "off"}, False),
        ("speculation", {"width": 2}, False),
        ("speculation", {"selection": "worth"}, False),
        ("speculation", {"drafters": (HEAD, "draft_ngram")}, False),
    ],
)
def test_the_profile_says_whether_the_target_drafts(
    section: str, change: dict[str, Any], drafts: bool, target: Path, head: Path
) -> None:
    """Only where all drafts are chains of its head, and the target verifies them whole."""
    speculation = SpeculationSettings(policy="fixed:3", drafters=(HEAD,))
    folders = replace(DRAFTER, folders=(f"{HEAD}:{head}",))
    profile = Profile("test", target=TARGET, speculation=speculation, drafter=folders)
    profile = replace(profile, **{section: replace(getattr(profile, section), **change)})
    assert load_target(target, profile, name="target").info().drafts_ahead == drafts  # type: ignore[attr-defined]


def test_a_target_with_its_own_head_takes_the_memory_of_both(target: Path, head: Path) -> None:
    alone = budget.of_target(target, TARGET, budget.Gpu())
    own = budget.of_drafter(HEAD, head, DRAFTER, budget.Gpu(), target)
    both = budget.with_own_head(alone, own)
    assert both.weights == alone.weights + own.weights + budget.HEAD_BLOCKS * 32 * own.token
    assert both.token == alone.token


def test_every_row_gets_its_own_chain(target: Path, head: Path) -> None:
    """Also where some want none, and beside a row that has only a part of its prompt read."""
    formula, runner = Formula(head, target), opened(target, head)
    texts, driver = (*PROMPTS[:3], RNG.integers(2, 97, 30).tolist()), Driver(runner)
    for tag, text in enumerate(texts):
        driver.open(tag, text)
    reply = driver.step(0, 1, 2, 3, chunk=(64, 64, 64, 5), next_depth=ints(3, 0, 2, 4))
    bounds = reply.draft_offsets.tolist()
    assert np.diff(bounds).tolist() == [3, 0, 2, 0]
    for row, depth in ((0, 3), (2, 2)):
        text = driver.texts[row]
        states = states_of(runner, row, text)
        assert reply.draft_tokens[bounds[row] : bounds[row + 1]].tolist() == formula.chain(text, states, depth)


def test_drafts_that_wait_take_no_block_from_other_rows(target: Path, head: Path) -> None:
    """The guess reserves room for the drafts of a text at the end of its block; a new request needs that block."""
    runner = opened(target, head, kv_blocks=2)
    driver = Driver(runner)
    driver.open(1, RNG.integers(2, 97, 28).tolist())
    assert len(driver.step(1, next_depth=ints(4)).draft_tokens) == 4
    driver.open(2, PROMPTS[2])
    assert not driver.step(1, 2).status.any()
    runner.check()


def test_a_text_that_ends_is_forgotten(target: Path, head: Path) -> None:
    runner = opened(target, head)
    own, driver = runner._own_head, Driver(runner)
    assert own is not None
    for tag in range(3):
        driver.open(tag, PROMPTS[0])
        driver.step(tag, next_depth=ints(2))
        assert len(own._drafter._ledger) == 1, "what had ended was freed with this call"
        driver.free(tag)
        driver.step()
        assert not own._known
    own._drafter.check()


class Counted:
    """A head's own process that counts calls for drafts."""

    def __init__(self, drafter: NeuralDrafter) -> None:
        self._drafter, self.asked = drafter, 0

    def info(self) -> Any:
        return self._drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        self.asked += bool(work.depth.any())
        return self._drafter.draft(work)


def answers(
    runner: TargetRunner, sampling: Sampling, policy: str, drafter: Drafter | None, *, times: int = 2
) -> Collector:
    sink, limits = Collector(), {"max_running": 3, "token_budget": 32, "growth_tokens": 16, "block_size": 32}
    drafters = {} if drafter is None else {HEAD: drafter}
    planner = build(SpeculationSettings(policy=policy, drafters=tuple(drafters)), tuple(drafters))
    engine = engine_to(sink, runner, planner, drafters, own_head=HEAD if drafters else "", **limits)
    if drafter is not None:
        engine.roster.came(HEAD, drafter.info())
    key = 0
    for _ in range(times):
        for prompt in PROMPTS:
            key += 1
            engine.submit(request(key, prompt, 30, sampling=replace(sampling, seed=key % len(PROMPTS))))
        finish(engine)
    return sink


@pytest.mark.parametrize("policy", ["fixed:3", "adaptive"])
@pytest.mark.parametrize("sampling", KINDS[:2], ids=["greedy", "coupled"])
def test_the_text_is_the_same_with_it_and_without(sampling: Sampling, policy: str, target: Path, head: Path) -> None:
    """Prompts longer than a pass, prefixes found, requests that wait and are preempted."""
    without = TargetRunner.load(target, replace(TARGET, head=""), token_budget=64, name="target")
    runner = opened(target, head, kv_blocks=6)
    apart = Counted(NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target))
    found = answers(runner, sampling, policy, apart)
    runner.check()
    assert found.tokens == answers(without, sampling, policy, None).tokens
    assert not apart.asked, "the target drafts itself"
    assert any(end.drafted for end in found.ended.values())


def test_requests_under_the_rejection_rule_are_drafted_for_by_its_own_process(target: Path, head: Path) -> None:
    apart = Counted(NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target))
    found = answers(opened(target, head), KINDS[2], "fixed:3", apart)
    assert apart.asked > 10
    assert all(end.drafted for end in found.ended.values())


class Dying:
    """A target that dies in one pass, and is there again at once."""

    def __init__(self, runner: TargetRunner, dies: int) -> None:
        self._runner, self._dies, self.passes = runner, dies, 0
        self.drafted: list[bool] = []  # by pass: whether it was to draft

    def info(self) -> Any:
        return self._runner.info()

    def step(self, work: TargetWork) -> TargetReply:
        self.passes += 1
        self.drafted.append(bool(work.next_depth.any()))
        if self.passes == self._dies:
            raise PortError("it died")
        return self._runner.step(work)


def test_after_a_death_the_heads_own_process_drafts_for_a_minute(target: Path, head: Path) -> None:
    """The head may have been its cause, and a drafter that fails costs no request."""
    apart, dying = Counted(NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target)), Dying(opened(target, head), 12)
    clock, sink = ManualClock(), Collector()
    planner = build(SpeculationSettings(policy="fixed:3", drafters=(HEAD,)), (HEAD,))
    hooks = EngineHooks(recover=lambda _error: None)
    engine = engine_to(sink, dying, planner, {HEAD: apart}, own_head=HEAD, clock=clock, hooks=hooks, block_size=32)
    engine.roster.came(HEAD, apart.info())
    finish(engine, [request(1, PROMPTS[0], 60)])
    assert any(dying.drafted[:12])
    assert not any(dying.drafted[12:])
    assert apart.asked > 10
    asked = apart.asked
    clock.sleep(FIRST_OWN + 1)
    finish(engine, [request(2, PROMPTS[0], 30)])
    assert apart.asked == asked
    assert dying.drafted[-3]
    assert sink.tokens[2] == sink.tokens[1][:30]


def test_when_it_fails_the_heads_own_process_drafts(
    target: Path, head: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner, apart = opened(target, head), Counted(NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target))
    draft, calls = runner._own_head._drafter.draft, 0  # type: ignore[union-attr]

    def failing(work: DraftWork) -> DraftReply:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise RuntimeError("no memory")
        return draft(work)

    monkeypatch.setattr(runner._own_head._drafter, "draft", failing)  # type: ignore[union-attr]
    without = TargetRunner.load(target, replace(TARGET, head=""), token_budget=64, name="target")
    found = answers(runner, Sampling(), "fixed:3", apart)
    assert found.tokens == answers(without, Sampling(), "fixed:3", None).tokens
    assert calls == 9
    assert apart.asked > 10
    assert "the target's own head has failed: draft_head drafts in its own process" in caplog.text


def test_it_drafts_while_the_heads_own_process_is_gone(target: Path, head: Path) -> None:
    apart, runner = NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target), opened(target, head)
    planner = build(SpeculationSettings(policy="fixed:3", drafters=(HEAD,)), (HEAD,))
    sink = Collector()
    engine = engine_to(sink, runner, planner, {HEAD: apart}, own_head=HEAD, block_size=32)
    engine.roster.came(HEAD, apart.info())
    engine.roster.gone(HEAD)
    rejecting = replace(KINDS[2], seed=1)
    finish(engine, [request(1, PROMPTS[2], 30), request(2, PROMPTS[0], 30, sampling=rejecting)])
    assert sink.ended[1].drafted > 50
    assert sink.ended[2].drafted == 0, "its own process drafts under the rejection rule"


class InTurn(Listed):
    """Chooses these depths, one after the other, again and again."""

    def __init__(self, depths: list[int]) -> None:
        super().__init__(0)
        self._depths, self.chosen = depths, list[int]()

    def choose(self, situation: Situation) -> int:
        self.asked.append(situation)
        self.chosen.append(min(self._depths[len(self.chosen) % len(self._depths)], situation.ceiling))
        return self.chosen[-1]


def test_each_lesson_is_of_the_choice_that_its_drafts_were_made_by(
    target: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round verifies the drafts that the choice before asked for, and its situation is that choice's."""
    apart, runner = NeuralDrafter.load(head, DRAFTER, name=HEAD, target=target), opened(target, head)
    draft = runner._own_head._drafter.draft  # type: ignore[union-attr]

    def slow(work: DraftWork) -> DraftReply:
        time.sleep(0.005 * int(work.depth.max()))
        return draft(work)

    monkeypatch.setattr(runner._own_head._drafter, "draft", slow)  # type: ignore[union-attr]
    policy, sink = InTurn([2, 4, 1, 3, 3, 0]), Collector()
    planner = RoundPlanner(policy, max_depth=4)
    records: list[RoundRecord] = []
    hooks = EngineHooks(observe=records.append)
    engine = engine_to(sink, runner, planner, {HEAD: apart}, own_head=HEAD, hooks=hooks, block_size=32)
    engine.roster.came(HEAD, apart.info())
    finish(engine, [request(1, PROMPTS[2], 60)])
    passes: dict[int, list[float]] = {}
    for record in records[:40]:  # the last ones have no room
        depth = int(record.plan.next_depth.max(initial=0))
        assert record.draft_seconds >= 0.005 * depth
        passes.setdefault(depth, []).append(record.pass_seconds)
    assert np.median(passes[4]) < np.median(passes[0]) + 0.01, "what the head took is no part of the pass"
    numbers = {id(situation): number for number, situation in enumerate(policy.asked)}
    told = [(numbers[id(situation)], depth, outcome) for situation, depth, outcome in policy.told]
    told = [each for each in told if each[0] < 40]  # the last ones have no room
    assert len(told) > 20
    taught: dict[int, list[float]] = {}
    for number, depth, outcome in told:
        assert depth == policy.chosen[number]
        assert outcome.verified == 1 + depth
        assert outcome.seconds >= outcome.draft_seconds + outcome.verify_seconds
        if depth:
            taught.setdefault(depth, []).append(outcome.draft_seconds)
            (trials,) = outcome.trials.values()
            assert trials.asked == depth
    assert {depth for _, depth, _ in told} == {1, 2, 3, 4}
    assert np.median(taught[4]) > np.median(taught[1]) + 0.01, "each depth has the time of its own drafts"


@pytest.mark.parametrize("at_once", [256, 24])
def test_what_it_reads_after_a_pause_refines_c_switch_if_it_is_read_at_once(
    at_once: int, target: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(DRAFTER, catch_up_tokens=at_once)
    apart = NeuralDrafter.load(head, settings, name=HEAD, target=target)
    runner = opened(target, head, own=settings)
    draft, took = runner._own_head.draft, list[bool]()  # type: ignore[union-attr]

    def timed(rows: int, wishes: Any) -> dict[str, Any]:
        found = draft(rows, wishes)
        took.append(bool(found["catch_up_seconds"]))
        return found | {"catch_up_seconds": 0.03 * took[-1]}

    monkeypatch.setattr(runner._own_head, "draft", timed)
    policy, costs = InTurn([*[3] * 8, *[0] * 80]), SwitchCosts()
    planner = RoundPlanner(policy, max_depth=4, switch_costs=costs)
    engine = engine_to(Collector(), runner, planner, {HEAD: apart}, own_head=HEAD, block_size=32)
    engine.roster.came(HEAD, apart.info())
    finish(engine, [request(1, PROMPTS[2], 200)])
    lag = max(situation.lag for situation, chosen in zip(policy.asked, policy.chosen) if chosen)
    assert lag > 70
    assert sum(took) >= (2 if at_once > lag else 4), "more than a first step reads by the way"
    assert costs.of(HEAD)(lag, 1) == (pytest.approx(0.03, rel=0.2) if at_once > lag else 0.0)
