"""Log-probabilities of a prompt are those that were told when it was generated: whatever drafts, company, chunks and
KV there were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.profile import TargetSettings
from covey.contracts.types import Finish, Ints, Rule, Sampling
from covey.requests.scheduler import SCORED, Scheduler
from covey.target.runner import TargetRunner
from tests.bundled import serve, texts
from tests.engines import answers, engine_to
from tests.fakes import Collector, request
from tests.models import tiny_models
from tests.static_planner import StaticPlanner

LENGTH, COUNT = 32, 6
SCORING = Sampling(prompt_logprobs=True, top_logprobs=2)


def samplings() -> list[Sampling]:
    own = [Sampling(temperature=number % 2, seed=number, logprobs=True) for number in range(COUNT)]
    return [*own[:-1], replace(own[-1], rule=Rule.REJECTION)]


def prompt(number: int) -> Ints:
    """Some are longer than what one pass scores, and none is a whole number of blocks."""
    text = np.concatenate(texts()[number : number + 1 + 8 * (number % 2)])
    assert (len(text) > 2 * SCORED) == bool(number % 2)
    return text


def test_a_prompt_s_scores_are_what_its_generation_said() -> None:
    asked = [request(key, prompt(key), LENGTH, sampling=each) for key, each in enumerate(samplings())]
    told, records = serve(StaticPlanner(4, 2), asked, ["draft_general"])
    assert sum(record.accepted for record in records) > 0
    whole = {each.key: np.append(each.prompt, told.tokens[each.key]).astype(np.int32) for each in asked}
    scoring = [request(COUNT + key, text, 0, sampling=SCORING) for key, text in whole.items()]
    for beside in ([], asked):  # the second time everything has KV in the pool, and others generate meanwhile
        found, _ = serve(StaticPlanner(4, 2), [*scoring, *beside], ["draft_general"])
        for each in scoring:
            key, scores = each.key - COUNT, found.scores[each.key]
            count = len(told.tokens[key])
            assert len(scores.logprobs) == len(scores.top.ids) == len(whole[key]) - 1
            assert scores.logprobs[-count:].tolist() == told.logprobs[key]
            assert (scores.top.logprobs[:, 0] >= scores.logprobs).all()
            likeliest = scores.top.ids[:, 0] == whole[key][1:]
            assert scores.top.logprobs[likeliest, 0].tolist() == scores.logprobs[likeliest].tolist()
            assert found.tokens[each.key] == []
            assert found.finish(each.key) is Finish.LENGTH
        for one in beside:
            if one.sampling.rule is Rule.COUPLED:
                assert found.tokens[one.key] == told.tokens[one.key]


def test_scores_and_output_come_together() -> None:
    text = prompt(1)
    both = request(1, text, 8, sampling=replace(SCORING, logprobs=True))
    alone, again = request(2, text, 0, sampling=SCORING), request(3, text[:1], 4, sampling=SCORING)
    found, _ = serve(StaticPlanner(), [both, alone, again])
    assert found.scores[1].logprobs.tolist() == found.scores[2].logprobs.tolist()
    assert len(found.tokens[1]) == len(found.logprobs[1]) == 8
    assert 3 not in found.scores  # of a prompt of one token there is nothing to be said
    assert len(found.tokens[3]) == 4


def test_a_pass_scores_some_tokens_and_reads_others_beside_them() -> None:
    scheduler = Scheduler(max_running=4, max_waiting=4, token_budget=1024, growth_tokens=0, block_size=32)
    for key, sampling in enumerate((SCORING, SCORING, Sampling())):
        scheduler.submit(request(key, [5] * 300, 4, sampling=sampling), 0.0)
    batch = scheduler.admit(100, 0.0)
    found = {active.key: size for active, size in zip(batch.rows, batch.chunk.tolist())}
    assert found == {0: SCORED, 2: 300}


@pytest.mark.parametrize("blocks", [100, 19])
def test_who_gives_way_amid_its_scores_has_them_all(tmp_path_factory: pytest.TempPathFactory, blocks: int) -> None:
    folder = tiny_models.build(tmp_path_factory.mktemp("scores"), "llama")
    settings = TargetSettings(dtype="float64", threads=1, kv_blocks=blocks, block_size=4, numerics="fast")
    target = TargetRunner.load(folder, settings, token_budget=8, name="target")
    sink = Collector()
    engine = engine_to(sink, target, max_running=2, token_budget=4, growth_tokens=0)
    text = np.random.default_rng(1).integers(2, 97, 60).astype(np.int32)
    engine.submit(request(1, text, 0, sampling=SCORING))
    engine.submit(request(2, text[:4], 60, priority=1))
    while engine.round():
        target.check()
    assert (engine.scheduler.preemptions > 0) == (blocks < 100)
    assert len(sink.tokens[2]) == 60
    alone = answers(target, [request(3, text, 0, sampling=SCORING)], token_budget=8, growth_tokens=0)
    assert len(sink.scores[1].logprobs) == 59
    assert sink.scores[1].logprobs == pytest.approx(alone.scores[3].logprobs, abs=1e-6)
    assert sink.scores[1].top.ids.tolist() == alone.scores[3].top.ids.tolist()
