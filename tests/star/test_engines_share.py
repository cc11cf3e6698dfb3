"""Several engines whose drafter is shared and elsewhere: texts are those of the target, and nothing hangs."""

from __future__ import annotations

import random
import threading
import time

import pytest

from covey.contracts.errors import PortError
from covey.contracts.ports import Drafter
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, Ints
from covey.drafters.calls import plainly
from covey.drafters.service import DraftService
from covey.star.callers import token_of
from covey.star.remote import RemoteDrafter
from covey.tritonio.grpc import Unreachable
from covey.wire import codec
from tests.engines import engine_to, finish
from tests.fakes import VOCAB, Collector, HashTarget, ManualClock, continuation, request
from tests.star.test_remote import There
from tests.static_planner import StaticPlanner

SECRETS = {name: f"secret-of-the-{name}-server" for name in ("north", "east", "west")}


class Shaky:
    """A drafter that now and then fails, or takes long."""

    def __init__(self, drafter: Drafter, seed: int) -> None:
        self._drafter = drafter
        self._rng = random.Random(seed)

    def info(self) -> DrafterInfo:
        return self._drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        chance = self._rng.random()
        if chance < 0.05:
            time.sleep(0.03)
        elif chance < 0.08:
            raise PortError("out of memory")
        return self._drafter.draft(work)


class World(There):
    """A drafters' server that fails, is started anew, and loses messages at random."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.services = list[DraftService]()
        super().__init__(callers=SECRETS)

    def start(self) -> None:
        super().start()
        self.service = DraftService(Shaky(self.drafter, self._rng.randrange(1 << 30)))
        self.services.append(self.service)

    def exchange(self, message: Ints, seconds: float) -> Ints:
        with self._lock:
            chance = self._rng.random()
            if chance < 0.004:
                self.service.stop()
                self.start()
        drafts = codec.kind_of(message) != codec.INFO_REQUEST.kind
        if drafts and chance > 0.98:
            raise Unreachable("lost on its way there")
        answer = super().exchange(message, seconds)
        if drafts and chance > 0.96:
            raise Unreachable("lost on its way back")
        assert seconds > 0
        return answer


def run(drafter: Drafter, name: str, seed: int, count: int) -> dict[int, tuple[list[int], list[int]]]:
    """What came out beside what should."""
    rng, sink = random.Random(seed), Collector()
    target, drafters = HashTarget(), {"remote": drafter}
    engine = engine_to(sink, target, StaticPlanner(4, 1), drafters, deadline=0.05, caller=name, max_running=6)
    prompts = {key: [rng.randrange(VOCAB) for _ in range(rng.randrange(2, 9))] for key in range(1, count + 1)}
    lengths = {key: rng.randrange(20, 60) for key in prompts}
    for key, prompt in prompts.items():
        engine.submit(request(key, prompt, lengths[key]))
    while engine.round():
        time.sleep(0.0002)
    assert target.used == 0
    return {key: (sink.tokens[key], continuation(prompt, lengths[key])) for key, prompt in prompts.items()}


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_the_target_s_own_whatever_becomes_of_messages_and_servers(seed: int) -> None:
    world, found, threads = World(seed), {}, []
    remotes = {
        name: RemoteDrafter([world], token_of(secret), name="remote", vocab_size=VOCAB, deadline=0.2)
        for name, secret in SECRETS.items()
    }

    def serve(name: str, remote: RemoteDrafter, at: int) -> None:
        time.sleep(0.1)  # it has asked whether it is there
        local = DraftService(remote)
        found[name] = run(local, name, 10 * seed + at, 30)
        local.stop()

    for at, (name, remote) in enumerate(remotes.items()):
        threads.append(threading.Thread(target=serve, args=(name, remote, at)))
        threads[-1].start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "an engine hangs"
    for remote in remotes.values():
        remote.close()
    assert set(found) == set(SECRETS)
    for texts in found.values():
        assert all(emitted == expected for emitted, expected in texts.values())
    counters = [each for service in world.services for each in service.counters()]
    assert sum(value for _, labels, value in counters if labels.get("outcome") == "drafted") > 0


def test_who_cannot_reach_it_decodes_plainly_and_asks_when_it_was_told_to() -> None:
    clock = ManualClock()

    class Away:
        asked: list[float] = []  # noqa: RUF012
        patience: list[float] = []  # noqa: RUF012

        def info(self) -> DrafterInfo:
            return DrafterInfo("away", VOCAB, 512, 1, 0)

        def draft(self, work: DraftWork) -> DraftReply:
            self.asked.append(clock.now())
            self.patience.append(work.patience)
            assert len(work.opens) == 1, "nothing was opened before"
            return plainly(work, 1, 0.0, again=2.0)

    target, sink, drafter = HashTarget(), Collector(), Away()

    class Slow:
        info = staticmethod(target.info)

        @staticmethod
        def step(work):  # type: ignore[no-untyped-def]
            clock.sleep(0.5)
            return target.step(work)

    drafters: dict[str, Drafter] = {"one": drafter}
    engine = engine_to(sink, Slow(), StaticPlanner(4, 1), drafters, clock=clock, deadline=0.25)  # type: ignore[arg-type]
    finish(engine, [request(1, [1, 2], 40)])
    assert sink.tokens[1] == continuation([1, 2], 40)
    gaps = [after - before for before, after in zip(drafter.asked, drafter.asked[1:])]
    assert len(gaps) > 3
    assert all(2.0 <= gap <= 2.5 for gap in gaps), "no sooner, and no later each time"
    assert set(drafter.patience) == {0.25}
