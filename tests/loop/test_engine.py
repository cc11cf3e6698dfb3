from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from covey.contracts.errors import Overloaded, PortError, StubDead
from covey.contracts.types import Finish, Progress, Sampling, TargetInfo, TargetReply, TargetWork
from covey.loop.configuration import EngineHooks
from covey.loop.engine import Engine
from tests.engines import engine_to
from tests.fakes import Collector, HashTarget, ManualClock, continuation, request

Recover = Callable[[PortError], None]


def refuse(error: PortError) -> None:
    """Recover nothing."""
    raise error


def build(
    target: HashTarget,
    sink: Collector | None = None,
    *,
    recover: Recover | None = None,
    clock: ManualClock | None = None,
    **limits: int,
) -> tuple[Engine, Collector]:
    """Return an engine. Its target is restarted after a failure unless `recover` says otherwise."""
    sink = sink or Collector()
    hooks = EngineHooks(recover=recover or (lambda _error: target.restart()))
    return engine_to(sink, target, clock=clock or ManualClock(), hooks=hooks, **{"max_running": 16} | limits), sink


def finish_all(engine: Engine, limit: int = 2000) -> int:
    rounds = 0
    while engine.round():
        rounds += 1
        assert rounds < limit, "the engine does not come to an end"
    return rounds


def test_prompts_are_prefilled_in_chunks_beside_decoding_rows() -> None:
    target = HashTarget()
    engine, sink = build(target, token_budget=16)
    engine.submit(request(1, [1], 30))
    engine.round()
    engine.submit(request(2, list(range(50)), 4))
    finish_all(engine)
    mixed = [work for work in target.works if len(work.tags) == 2 and work.chunk.max() > 1]
    assert len(mixed) >= 3, "a prompt of 50 in passes of 16 takes at least four"
    assert all(work.chunk.sum() <= 16 for work in target.works)
    assert all(work.chunk[list(work.tags).index(1)] == 1 for work in mixed), "decoding goes on beside a prefill"
    assert sink.tokens[1] == continuation([1], 30)
    assert sink.tokens[2] == continuation(list(range(50)), 4)


def test_what_a_failed_pass_was_to_free_the_next_one_frees() -> None:
    target = HashTarget()
    engine, _sink = build(target, recover=lambda _error: None)
    for key in (1, 2):
        engine.submit(request(key, [key] * 8, 30))
    engine.round()
    engine.cancel(1)
    target.fail_with = [PortError("once")]
    finish_all(engine)
    assert not target.tokens


def test_what_waited_says_how_long_it_did_until_it_first_ran() -> None:
    class Queued(Collector):
        def publish(self, batch: Sequence[Progress]) -> None:
            queued.extend((item.key, item.queued) for item in batch)

    queued, clock = list[tuple[int, float | None]](), ManualClock()
    engine, _ = build(HashTarget(), Queued(), max_running=1, clock=clock)
    for key in (1, 2):
        engine.submit(dataclasses.replace(request(key, [1, 2], 5), arrival=0.5))
    clock.time = 1.0
    while engine.round():
        clock.time += 0.25
    assert set(queued) == {(1, 0.5), (2, 0.5 + 0.25 * 5)}


def test_an_end_token_ends_a_request_and_is_its_last() -> None:
    expected = continuation([3, 1], 40)
    end = expected[6]
    first = expected.index(end)
    engine, sink = build(HashTarget(end_ids=(end,)))
    engine.submit(request(1, [3, 1], 40, sampling=Sampling(end_ids=(end,))))
    finish_all(engine)
    assert sink.tokens[1] == expected[: first + 1]
    assert sink.finish(1) is Finish.EOS


def test_a_target_that_forgot_a_tag_is_told_again() -> None:
    target = HashTarget()
    engine, sink = build(target)
    engine.submit(request(1, [1, 2, 3], 12))
    for _ in range(4):
        engine.round()
    target.restart()
    finish_all(engine)
    assert sink.tokens[1] == continuation([1, 2, 3], 12)


def test_a_request_that_can_never_fit_fails_alone() -> None:
    engine, sink = build(HashTarget(blocks=3), growth_tokens=0)
    engine.submit(request(1, [1] * 4, 20))
    finish_all(engine)
    assert sink.finish(1) is Finish.ERROR
    assert sink.tokens[1] == continuation([1] * 4, len(sink.tokens[1]))


@pytest.mark.parametrize(("count", "blocks"), [(2, 3), (3, 4)])
def test_nobody_pays_for_a_pool_that_a_request_is_just_leaving(count: int, blocks: int) -> None:
    """The first takes the last block and ends in the pass in which the others find none."""
    target = HashTarget(blocks=blocks)
    engine, sink = build(target, growth_tokens=0)
    prompts = {key: [key] * 4 for key in range(1, count + 1)}
    for key, prompt in prompts.items():
        engine.submit(request(key, prompt, 2 if key == 1 else 4))
    finish_all(engine)
    assert {key: sink.tokens[key] for key in prompts} == {
        key: continuation(prompt, 2 if key == 1 else 4) for key, prompt in prompts.items()
    }
    assert engine.scheduler.preemptions == 0


class Fragile(HashTarget):
    """Fails for good reason: whenever a row has more than `most` tokens of its prompt computed, after the work."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.failures = 0

    def step(self, work: TargetWork) -> TargetReply:
        reply = super().step(work)
        if max(self.cached.values(), default=0) > self.most:
            self.failures += 1
            raise PortError("that is too much")
        return reply


def test_replays_that_never_get_to_a_token_are_given_up() -> None:
    target = Fragile(20)
    engine, sink = build(target, token_budget=16)
    engine.submit(request(1, list(range(40))))
    finish_all(engine, limit=20)
    assert sink.finish(1) is Finish.ERROR
    assert target.failures == 2


FATAL = 66


class Mortal(HashTarget):
    """Dies in passes over a request that begins with FATAL, as soon as it has as many tokens as its second one says."""

    def __init__(self) -> None:
        super().__init__()
        self.deaths = 0

    def step(self, work: TargetWork) -> TargetReply:
        reply = super().step(work)
        for tag in work.tags.tolist():
            tokens = self.tokens.get(tag, [])
            if tokens[:1] == [FATAL] and len(tokens) >= tokens[1]:
                self.deaths += 1
                raise StubDead("its process ended")
        return reply


@pytest.mark.parametrize("tokens", [2, 9])
def test_a_request_that_kills_the_target_fails_alone_beside_a_steady_client(tokens: int) -> None:
    target = Mortal()
    engine, sink = build(target)
    engine.submit(request(1, [1, 2, 3], 200))
    for _ in range(4):
        engine.round()
    engine.submit(request(2, [FATAL, tokens], 20))
    asked = 2
    while 2 not in sink.ended or asked < 10:
        if asked == 2 or asked in sink.ended:
            asked += 1
            engine.submit(request(asked, [asked], 3))
        assert engine.round()
        engine._clock.sleep(0.5)
        assert target.deaths <= 2
    assert 1 not in sink.ended, "it needs no pause of the steady one"
    finish_all(engine)
    assert sink.finish(2) is Finish.ERROR
    assert "not tried again: its process ended" in str(sink.ended[2].error)
    assert sink.tokens[1] == continuation([1, 2, 3], 200)
    assert all(sink.tokens[key] == continuation([key], 3) for key in range(3, asked + 1))


def test_of_many_requests_that_kill_the_target_each_is_found_alone_and_takes_nobody_along() -> None:
    target = Mortal()
    engine, sink = build(target, max_running=32)
    engine.submit(request(1, [1, 2, 3], 20))
    engine.submit(request(2, [4, 5], 20))
    engine.round()
    for key in range(3, 23):
        engine.submit(request(key, [FATAL, 2 + key % 4], 20))
    finish_all(engine)
    assert {key for key, ended in sink.ended.items() if ended.finish is Finish.ERROR} == set(range(3, 23))
    assert sink.tokens[1] == continuation([1, 2, 3], 20)
    assert sink.tokens[2] == continuation([4, 5], 20)
    assert target.deaths <= 2 * 20, "in a pass with others, and alone"
    assert all("not tried again" in str(sink.ended[key].error) for key in range(3, 23))


def test_many_requests_that_kill_a_target_slow_to_load_make_nobody_wait_for_more_than_three_loads() -> None:
    target = Mortal()
    clock = ManualClock()

    def reload(_error: PortError) -> None:
        clock.sleep(4.0)
        target.restart()

    engine, sink = build(target, max_running=32, token_budget=128, recover=reload, clock=clock)
    engine.submit(request(1, [1, 2, 3], 200))
    for _ in range(9):
        engine.round()
    for key in range(3, 23):
        engine.submit(request(key, [FATAL, 2], 20))
    began, asked = clock.now(), False
    while len(sink.ended) < 20 + asked:
        assert engine.round()
        if target.deaths and not asked:
            asked = True
            engine.submit(request(30, [7], 3))
        clock.sleep(0.02)
    assert clock.now() - began < 14
    assert target.deaths == 3
    said = Counter(str(sink.ended[key].error).partition(":")[0] for key in range(3, 23))
    assert said == {
        "the target failed 2 times over this request, which is not tried again": 1,
        "the target failed over this request and 18 others; one of them may be the cause; try again": 19,
    }
    assert sum(isinstance(ended.error, Overloaded) for ended in sink.ended.values()) == 19
    finish_all(engine)
    assert sink.tokens[1] == continuation([1, 2, 3], 200)
    assert sink.tokens[30] == continuation([7], 3)


@pytest.mark.parametrize("cancelled", ["by its client", "by the failure"])
def test_what_was_opened_when_a_target_failed_and_lives_is_freed(cancelled: str) -> None:
    """Else nobody would free these tags."""
    target = Fragile(20)
    engine, sink = build(target, recover=refuse if cancelled == "by the failure" else lambda _error: None)
    engine.submit(request(1, [1, 2, 3], 30))
    engine.round()
    engine.submit(request(2, list(range(30))))
    engine.round()
    assert target.failures == 1
    if cancelled == "by its client":
        engine.cancel(2)
        engine.cancel(1)
        finish_all(engine)
    assert {sink.finish(key) for key in (1, 2)} == {Finish.CANCELLED if cancelled == "by its client" else Finish.ERROR}
    finish_all(engine)
    assert not target.tokens


def test_a_target_that_ended_while_nothing_ran_is_brought_back_before_the_next_request() -> None:
    target = HashTarget()
    recovered = threading.Event()
    engine, _sink = build(target, recover=lambda _error: recovered.set())
    answers = target.info
    engine.suspect()
    assert not engine.round()
    assert not recovered.is_set(), "it lives: somebody else was quicker"

    def dead() -> TargetInfo:
        raise StubDead("its process ended")

    target.info = dead  # type: ignore[method-assign]
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    engine.suspect()
    assert recovered.wait(30)
    target.info = answers  # type: ignore[method-assign]
    engine.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_a_recovery_that_fails_in_any_way_fails_what_runs_and_no_more() -> None:
    target = HashTarget()

    def recover(_error: PortError) -> None:
        raise MemoryError("shared memory is full")

    engine, sink = build(target, max_running=1, recover=recover)
    engine.submit(request(1, [1]))
    engine.submit(request(2, [9], 3))
    target.fail_with = [PortError("dead")]
    finish_all(engine)
    assert "dead" in str(sink.ended[1].error)
    assert sink.tokens[2] == continuation([9], 3)


def test_a_target_that_stays_dead_is_not_asked_for_ever() -> None:
    target = HashTarget()
    engine, sink = build(target)
    engine.submit(request(1, [1]))
    engine.round()
    target.fail_with = [PortError("dead")] * 100
    finish_all(engine, limit=10)
    assert sink.finish(1) is Finish.ERROR


def test_a_drain_from_another_thread_lets_nobody_in_after_it_and_nobody_down() -> None:
    engine, sink = build(HashTarget(), max_waiting=10**6)
    taken: list[int] = []

    def knock(first: int) -> None:
        for key in range(first, 10**6, 4):
            try:
                engine.submit(request(key, [key % 90], 2))
            except Overloaded:
                return
            taken.append(key)

    threads = [threading.Thread(target=knock, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    while len(taken) < 20:
        engine.round()
    engine.drain()
    for thread in threads:
        thread.join(30)
    with pytest.raises(Overloaded, match="draining"):
        engine.submit(request(10**6, [1]))
    finish_all(engine, limit=10**6)
    assert sorted(sink.ended) == sorted(taken)
