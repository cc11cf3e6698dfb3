"""Who drafts: rounds replayed from hits, groups of prompts, beliefs, and the joint choice, in a world with domains."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.clock import RealClock
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import (
    DrafterInfo,
    DraftReply,
    DraftWork,
    Judged,
    RowStatus,
    Rule,
    Sampling,
    TargetReply,
    TargetWork,
    Trees,
)
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.planner.drafters import read_scheduler
from covey.planner.drafters.beliefs import Beliefs
from covey.planner.drafters.interference import LEAST
from covey.planner.drafters.replay import Replay
from covey.planner.round_planner import RoundPlanner
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Plan, Round, RoundRecord
from covey.requests.scheduler import Batch, Scheduler
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock
from tests.fakes import VOCAB, Collector, HashTarget, continuation, next_token, request

DOMAINS = ("code", "math", "chat", "prose")
DEPTH = 4


def domain_of(tokens: Sequence[int]) -> int:
    return tokens[0] % len(DOMAINS)


def prompt(domain: int, key: int, length: int = 24) -> list[int]:
    """Prompts of a domain have words of their own."""
    rng = random.Random(key)
    return [domain, *(domain + len(DOMAINS) * rng.randrange(6) for _ in range(length - 1))]


class Specialist:
    """Implements `covey.contracts.ports.Drafter`: right with a probability that depends on the domain of the text, by
    luck that depends on the text alone, so that what it says of text that it reads is what it would have drafted."""

    def __init__(
        self, name: str, rates: Sequence[float], clock: VirtualClock | RealClock, *, step: float = 0.001
    ) -> None:
        self.name, self.rates, self.clock, self.step = name, rates, clock, step
        self.tokens: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.drafts = self.reads = 0
        self.asked: list[DraftWork] = []

    def info(self) -> DrafterInfo:
        return DrafterInfo(self.name, VOCAB, 4096, 7, 0)

    def right(self, tokens: Sequence[int]) -> bool:
        digest = hashlib.blake2b(np.asarray([*tokens, len(tokens)], np.int32).tobytes(), key=self.name.encode())
        return int.from_bytes(digest.digest()[:4], "little") / (1 << 32) < self.rates[domain_of(tokens)]

    def draft(self, work: DraftWork) -> DraftReply:
        self.asked.append(work)
        for tag in work.frees:
            self.tokens.pop(tag, None)
        for opening in work.opens:
            self.tokens[opening.tag] = opening.tokens.tolist()
            self.prompts[opening.tag], self.read[opening.tag] = opening.num_prompt, 0
        chains, seen, told = [], [], []
        for row, tag in enumerate(work.tags.tolist()):
            text = self.tokens[tag]
            text[:] = text[: work.keep[row]] + work.tokens[work.offsets[row] : work.offsets[row + 1]].tolist()
            seen.append(len(text))
            chain: list[int] = []
            for _ in range(work.depth[row]):
                right = next_token(text + chain)
                chain.append(right if self.right(text + chain) else (right + 1) % VOCAB)
            chains.append(chain)
            if work.judging is not None:
                told.append(self.judged(tag, int(work.judging.judge_from[row])))
            self.read[tag] = len(text)
        self.drafts += work.judging is None
        self.reads += work.judging is not None
        seconds = self.step * (max(map(len, chains)) or 1)
        self.clock.sleep(seconds)
        offsets = np.cumsum([0, *map(len, chains)]).astype(np.int32)
        parents = [at - 1 for chain in chains for at in range(len(chain))]
        flat = np.asarray([token for chain in chains for token in chain], np.int32)
        trees = Trees(offsets, flat, np.asarray(parents, np.int32), np.zeros(len(flat), np.float32))
        none = np.zeros(len(chains), np.int32)
        reply = DraftReply(none + RowStatus.OK, np.asarray(seen, np.int32), trees, 7, 0.0, seconds)
        if work.judging is None:
            return reply
        firsts, hits, log_q, counts = zip(*told)
        judged = Judged(
            np.asarray(seen, np.int32),
            np.asarray(firsts, np.int32),
            np.cumsum([0, *map(len, hits)]).astype(np.int32),
            np.asarray([hit for each in hits for hit in each], np.int32),
            np.asarray(log_q, np.float32),
            np.asarray(counts, np.int32),
        )
        return replace(reply, judged=judged)

    def judged(self, tag: int, judge: int) -> tuple[int, list[int], float, int]:
        text, end = self.tokens[tag], self.prompts[tag]
        first = max(judge, end, self.read[tag])
        hits = [int(self.right(text[:at])) for at in range(first, len(text))]
        count = max(0, end - max(judge, self.read[tag])) if judge >= 0 else 0
        return first, hits, -count * (3.0 - 2.0 * self.rates[domain_of(text)]), count


class World:
    """A server with a specialist for each domain and one that knows a little of all."""

    def __init__(
        self,
        policy: str,
        *,
        length: str = "fixed:4",
        good: float = 0.9,
        bad: float = 0.3,
        general: float = 0.7,
        step: float = 0.001,
        one_device: bool = False,
    ) -> None:
        """`one_device`: drafters work one after the other, not at the same time."""
        self.clock, self.sink, self.target = VirtualClock(), Collector(), HashTarget(blocks=4000)
        rates = {"general": [general] * len(DOMAINS)}
        rates |= {name: [good if at == own else bad for at in range(len(DOMAINS))] for own, name in enumerate(DOMAINS)}
        self.drafters = {name: Specialist(name, each, self.clock, step=step) for name, each in rates.items()}
        settings = SpeculationSettings(policy=length, drafter_policy=policy, max_depth=DEPTH, drafters=tuple(rates))
        verify = tuple((rows, tokens, 0.01 + 0.0001 * tokens) for rows in (1, 32) for tokens in (rows, rows * 5))
        draft = tuple((rows, count, step * count) for rows in (1, 32) for count in (1, DEPTH))
        costs = CostTable("made up", "for tests", verify, (), dict.fromkeys(rates, draft), {})
        self.planner: RoundPlanner = build(settings, tuple(rates), costs=costs, max_rows=32)
        self.records: list[RoundRecord] = []
        scheduler = Scheduler(max_running=32, max_waiting=4096, token_budget=512, growth_tokens=8, block_size=4)
        device = self.clock.worker("device")
        self.engine = Engine(
            self.target,
            scheduler,
            self.planner,
            self.sink,
            self.clock,
            EngineConfig(self.drafters),
            EngineHooks(
                observe=self.records.append, worker=(lambda _name: device) if one_device else self.clock.worker
            ),
        )
        step_of = self.target.step
        self.target.step = lambda work: (self.clock.sleep(0.01), step_of(work))[1]  # type: ignore[method-assign]

    def serve(
        self, domains: Iterable[int], *, together: int = 1, count: int = 60, first: int = 0, **given: object
    ) -> None:
        waiting = list(enumerate(domains, first))
        while waiting:
            now, waiting = waiting[:together], waiting[together:]
            for key, domain in now:
                self.engine.submit(request(key, prompt(domain, key), count, **given))
            while self.engine.round():
                pass
            for key, domain in now:
                assert self.sink.tokens[key] == continuation(prompt(domain, key), count)

    def rounds(self, start: int = 0) -> Counter[str]:
        return Counter(name for record in self.records[start:] for name in record.plan.drafter if name)

    def drafted(self, start: int = 0) -> float:
        """Tokens of a drafting row's round."""
        rounds = [record for record in self.records[start:] if record.drafted]
        return sum(record.emitted for record in rounds) / sum(record.trees for record in rounds)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_replayed_rounds_are_those_of_the_drafter_drafting(depth: int) -> None:
    clock = RealClock()
    drafter = Specialist("code", [0.6] * 4, clock, step=0.0)
    text = [1, 2, 3, *continuation([1, 2, 3], 300)]
    at, drafted = 3, []
    while at + depth < len(text):
        accepted = 0
        while accepted < depth and drafter.right(text[: at + accepted]):
            accepted += 1
        drafted.append(accepted)
        at += accepted + 1
    hits = [int(drafter.right(text[:place])) for place in range(3, len(text))]
    replayed = [accepted for _, accepted in Replay(depth).take(3, hits)]
    assert replayed[: len(drafted)] == drafted
    assert len(replayed) >= len(drafted)


def drafted(beliefs: Beliefs, active: ActiveRequest, drafter: int, looked: int, accepted: int) -> None:
    beliefs.drafted([active], *(np.array([each], np.int32) for each in (drafter, looked, accepted)))


def test_tenants_do_not_see_what_others_taught() -> None:
    beliefs = Beliefs(["one", "two"], DEPTH)
    text = prompt(0, 1)
    one, other, mine = (ActiveRequest(request(key, text, tenant=tenant)) for key, tenant in enumerate(("a", "b", "a")))
    for _ in range(50):
        drafted(beliefs, one, 1, 4, 4)
        drafted(beliefs, one, 0, 1, 0)
    expected = beliefs.expected([mine, other], 0.0)[0][:, :, DEPTH]
    assert expected[0, 1] > 4.0 > 1.5 > expected[0, 0]
    assert expected[1, 0] == expected[1, 1], "of tenant b nothing is known"


def test_each_domain_gets_its_specialist() -> None:
    rng = random.Random(1)
    world = World("adaptive")
    world.serve(rng.choices(range(4), k=40))
    start = len(world.records)
    domains = rng.choices(range(4), k=30)
    world.serve(domains, first=100)
    alone = World("adaptive", good=0.9, bad=0.9, general=0.9)
    alone.serve(domains, first=100)
    assert world.drafted(start) > 0.95 * alone.drafted(), "as good as where every drafter is the best"
    assert world.rounds(start)["general"] < 0.1 * sum(world.rounds(start).values())


@pytest.mark.parametrize("together", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_it_beats_the_general_drafter_from_the_start(together: int) -> None:
    domains = random.Random(2).choices(range(4), k=48)
    covey, general = World("adaptive"), World("fixed:general")
    covey.serve(domains, together=together)
    general.serve(domains, together=together)
    assert general.rounds().keys() == {"general"}
    assert covey.clock.now() < general.clock.now() * (0.9 if together == 1 else 0.95)


def test_a_further_drafter_is_not_called_for_less_than_it_costs() -> None:
    """Where steps of drafts are dear and specialists hardly better, a mixed batch shares one drafter."""
    domains = list(range(4)) * 20
    shares = {}
    for one_device in (True, False):
        world = World("adaptive", good=0.85, step=0.01, one_device=one_device)
        world.serve(domains, together=16)
        rounds = world.rounds(len(world.records) // 2)
        shares[one_device] = rounds["general"] / sum(rounds.values())
    assert shares[True] > 0.8 > 0.3 > shares[False]


@pytest.mark.slow
def test_reading_stays_within_its_share_of_time() -> None:
    world = World("adaptive")
    world.serve(random.Random(3).choices(range(4), k=60), count=100)
    read = sum(drafter.reads for drafter in world.drafters.values()) * 0.001
    began = (read_scheduler.START - read_scheduler.DEEPEST) * world.clock.now() / len(world.records)
    assert 0 < read < read_scheduler.SHARE * world.clock.now() + began + 0.02


def test_drafters_that_cannot_win_are_hardly_read() -> None:
    """Where drafting takes five times as long as plain decoding, whatever they would have had accepted."""
    world = World("adaptive", length="adaptive", step=0.05)
    world.serve(random.Random(3).choices(range(4), k=30), count=50)
    reads, before = sum(drafter.reads for drafter in world.drafters.values()), world.clock.now()
    world.serve(random.Random(3).choices(range(4), k=30), count=50, first=100)
    reads = sum(drafter.reads for drafter in world.drafters.values()) - reads
    assert 0 < reads * 0.05 * LEAST < read_scheduler.SHARE * (world.clock.now() - before) / 2


def test_each_request_drafts_as_deep_as_pays_for_it() -> None:
    """The same drafter is right of some requests and wrong of others, which take turns."""
    world = World("adaptive", length="adaptive", step=0.004)
    world.drafters["general"].rates = [0.95, 0.05] * 2
    world.serve([0, 1] * 25, drafter="general")
    drafted = [world.sink.ended[key].drafted for key in range(10, 50)]
    assert sum(drafted[::2]) > 10 * sum(drafted[1::2])


@pytest.mark.parametrize("rounds", [8, 9])  # one of them is followed by rows assigned ahead
def test_a_drafter_that_goes_after_rows_were_assigned_ahead_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    world = World("adaptive")
    world.serve([1] * 6)
    meanwhile, gone, begun = world.planner.meanwhile, list[int](), len(world.records)

    def leaving(batch: Batch, plan: Plan, roster: Roster) -> None:
        meanwhile(batch, plan, roster)
        if len(world.records) == begun + rounds:
            gone.append(len(world.records))
            roster.failed(plan.drafter[0])

    monkeypatch.setattr(world.planner, "meanwhile", leaving)
    world.serve([1], first=6)
    last, after = (record.plan for record in world.records[gone[0] : gone[0] + 2])
    assert after.drafter[0] != last.drafter[0]
    assert after.depth.all()


def test_prompts_are_not_read_by_drafters_that_are_known_to_be_worse() -> None:
    world = World("adaptive", bad=0.05)
    world.serve([1] * 60)
    read = [{judge.drafter for judge in record.plan.judges} for record in world.records if not record.decoding]
    assert read[0] == {"general", *DOMAINS}, "at first nothing is known of anybody"
    assert not any(names & {"code", "chat", "prose"} for names in read[80:])


def test_reading_is_paid_for_where_no_row_decodes() -> None:
    """Answers of one token come of the pass that reads the prompt."""
    world = World("adaptive", step=0.02)
    world.serve(random.Random(3).choices(range(4), k=40), count=1)
    read = sum(drafter.reads for drafter in world.drafters.values()) * 0.02
    assert 0 < read < read_scheduler.SHARE * world.clock.now() + read_scheduler.START - read_scheduler.DEEPEST + 0.2


def test_a_request_that_names_its_drafter_has_it() -> None:
    world = World("adaptive")
    world.serve([0, 1], together=2, drafter="math")
    assert world.rounds().keys() == {"math"}
    assert all(record.plan.why == ("asked",) * len(record.plan.why) for record in world.records)


@pytest.mark.parametrize("policy", ["adaptive", "ucb-be"])
def test_a_text_that_a_drafter_cannot_hold_is_drafted_by_others_and_not_read_for_ever(policy: str) -> None:
    world = World(policy)
    for name, drafter in world.drafters.items():
        longest = 60 if name == "math" else 4096
        world.engine.roster.came(name, replace(drafter.info(), max_positions=longest))
    world.serve([1] * 8, count=120)
    told = [(work.keep + np.diff(work.offsets) + work.depth, work) for work in world.drafters["math"].asked]
    assert told
    assert max(int(lengths.max()) for lengths, _ in told) <= 60
    late = [record for record in world.records if record.plan.depth.any()][-200:]
    assert {name for record in late for name in record.plan.drafter} > {"math"}, "others draft then"


def test_rows_that_their_drafter_cannot_hold_are_asked_nothing_and_teach_nothing() -> None:
    """What they are short of is no fault of its drafts."""
    world = World("fixed:general")
    for name, drafter in world.drafters.items():
        world.engine.roster.came(name, replace(drafter.info(), max_positions=40))
    world.serve([0], count=60)
    depths = [record.plan.depth[0] for record in world.records if record.decoding]
    assert max(depths) == DEPTH
    assert not any(depths[-20:])
    asked = world.drafters["general"].asked
    assert max(int((work.keep + np.diff(work.offsets) + work.depth).max()) for work in asked) == 40


def test_rows_that_want_no_drafts_have_no_say_and_are_not_read() -> None:
    world = World("adaptive")
    world.serve([1] * 4, together=4, speculation="off")
    assert not any(drafter.reads or drafter.drafts for drafter in world.drafters.values())
    assert {why for record in world.records for why in record.plan.why} == {"asked"}


def test_under_the_rejection_rule_drafters_are_chosen_as_well() -> None:
    world, heard = World("adaptive"), list[int]()
    learn = world.planner.learn

    def listening(done: Round) -> None:
        heard.extend(hit for active in done.batch.rows for said in active.judgements.values() for hit in said.hits)
        learn(done)

    world.planner.learn = listening  # type: ignore[method-assign]
    world.serve(random.Random(5).choices(range(4), k=60), sampling=Sampling(temperature=1.0, rule=Rule.REJECTION))
    assert world.rounds(len(world.records) // 2)["general"] < 0.5 * sum(world.rounds().values()) / 2
    assert sum(drafter.reads for drafter in world.drafters.values()) > 0, "of prompts"
    assert not heard, "the text that others drafted is not read"


def test_a_bandit_knows_of_its_last_round_when_it_chooses() -> None:
    """The policy of lengths is patient here, and told of a round while the next one drafts."""
    world = World("ucb-be")
    world.serve([2])
    played = [record.plan.drafter[0] for record in world.records if record.plan.depth.any()]
    assert played[:6] == [*world.drafters, "chat"], "each arm once, then the best"


@pytest.mark.parametrize(("policy", "wanted"), [("ucb-bd", True), ("sh", True), ("ucb-be", False), ("adaptive", False)])
def test_block_divergence_is_asked_for_where_a_policy_learns_from_it(policy: str, wanted: bool) -> None:
    world = World(policy)
    asked, shipped = set(), set()
    step, drafter = world.target.step, world.drafters["general"]
    draft = drafter.draft
    world.target.step = lambda work: (asked.add(work.divergence), step(work))[1]  # type: ignore[method-assign]
    drafter.draft = lambda work: (shipped.add(work.q_rows), draft(work))[1]  # type: ignore[method-assign]
    world.serve([0, 1, 2])
    assert wanted in asked
    assert shipped <= {wanted}
    assert not wanted or shipped


@pytest.mark.parametrize("policy", ["ucb-bd", "d-ucb", "sw-ucb", "sh", "petc", "exp3"])
def test_an_arm_that_proposes_nothing_is_left(policy: str) -> None:
    """The first arm is silent. A bandit that learnt nothing of that would call it untried, and play it for ever."""
    world = World(policy)
    silent, step = world.drafters["general"], world.target.step
    answer = silent.draft
    silent.draft = lambda work: replace(answer(work), trees=Trees.empty(len(work.tags)))  # type: ignore[method-assign]

    def judged(work: TargetWork) -> TargetReply:
        drafted = work.trees.sizes > 0
        return replace(step(work), divergence=np.where(drafted, 0.6, -1.0).astype(np.float32))

    world.target.step = judged  # type: ignore[method-assign]
    world.serve([0, 1, 2] * 4)
    rounds = world.rounds()
    assert rounds["general"] < 0.5 * rounds.total() if policy == "exp3" else rounds["general"] < 0.2 * rounds.total()


def decoding(keys: Iterable[int], count: int = 40) -> list[ActiveRequest]:
    """Requests as they run, with so many tokens of output."""
    rows = [ActiveRequest(request(key, prompt(key % 4, key), 200), opened=True) for key in keys]
    for active in rows:
        active.output = continuation(active.request.prompt.tolist(), count)
        active.num_cached_tokens = active.num_tokens - 1
    return rows


def batch_of(rows: list[ActiveRequest]) -> Batch:
    return Batch(rows, np.ones(len(rows), np.int32), (), (), len(rows))


@pytest.mark.parametrize("away", [1, 8])
def test_who_was_away_while_its_drafter_failed_gets_another(away: int) -> None:
    """As a request does that was preempted."""
    world, rows = World("adaptive"), decoding(range(8))
    policy, roster = world.planner._drafters, world.engine.roster
    failed = policy.assign(batch_of(rows), roster).drafters[0]
    roster.failed(failed)
    policy.assign(batch_of(rows[away:]), roster)
    again = policy.assign(batch_of(rows), roster)
    assert failed not in again.drafters
    policy.judges(batch_of(rows), again, roster)


def test_a_prompt_that_comes_while_no_drafter_serves_is_read_by_none() -> None:
    world = World("adaptive")
    for name in world.drafters:
        world.engine.roster.failed(name)
    world.serve([2])
    assert world.records[0].plan.judges == ()


@pytest.mark.parametrize("policy", ["adaptive", "ucb-be"])
def test_a_drafter_that_is_still_reading_a_long_prompt_is_not_blamed_for_it(policy: str) -> None:
    world = World(policy, good=0.7, bad=0.7, general=0.7)
    for drafter in world.drafters.values():
        drafter.draft = reading_first(drafter.draft, 8)  # type: ignore[method-assign]
    world.serve([0])
    asked = [record.plan.drafter[0] for record in world.records if record.plan.depth.any()]
    assert len(set(asked[:8])) == 1, "another one would have to read it, too"
    assert any(record.accepted for record in world.records)


def reading_first(draft: Callable[[DraftWork], DraftReply], rounds: int) -> Callable[[DraftWork], DraftReply]:
    """Has no time left for proposals in its first rounds."""
    left = rounds

    def answer(work: DraftWork) -> DraftReply:
        nonlocal left
        reply = draft(work)
        if work.judging is not None or not left:
            return reply
        left -= 1
        rows = len(work.tags)
        status = np.full(rows, RowStatus.SKIPPED, np.int32)
        return replace(reply, status=status, trees=Trees.empty(rows), catch_up_seconds=0.05, draft_seconds=0.0)

    return answer
