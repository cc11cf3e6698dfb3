"""Runs a competitor: engine, target, drafters and streamer in this process, without Triton, the wire or other
processes."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from covey.contracts.clock import RealClock
from covey.contracts.errors import PortError
from covey.contracts.ports import Drafter, Target
from covey.contracts.profile import Profile
from covey.contracts.types import Request, Sampling
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.process import cpu
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import Scheduler
from covey.text.streaming import Chunk, Streamer
from loadtest.bench.work import Answer, Ask, Run

SWITCH_SECONDS = 0.0005  # as in the server: the engine's thread gets the interpreter back soon
SETTLING_SECONDS = 5.0  # an engine may take this long to free its last requests
LOOK_SECONDS = 1.0  # between checks that it still runs


class InProcess:
    """Runs one engine over a target and drafters of this process. Without requests its threads sleep and none of its
    calls is in flight, so engines that share a target may be asked in turns."""

    def __init__(
        self,
        name: str,
        profile: Profile,
        target: Target,
        *,
        drafters: Mapping[str, Drafter] = {},
        observe: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        """`observe` gets every round. Prompts are ids."""
        self.name = name
        self.target = target.info()
        self._also = observe
        self._clock = RealClock()
        self._streamer = Streamer(None, self._clock)
        self._engine = Engine(
            target,
            Scheduler.of(profile.scheduler, self.target.block_size),
            build(profile.speculation, tuple(drafters), max_rows=profile.scheduler.max_running),
            self._streamer,
            self._clock,
            EngineConfig(dict(drafters), draft_deadline=profile.speculation.draft_deadline_ms / 1000),
            EngineHooks(observe=self._observe),
        )
        self._quiet = threading.Event()
        self._problem: Exception | None = None
        self._streamer.start(self._engine)
        self._threads = profile.target.threads or cpu.cores()
        self._thread = threading.Thread(target=self._rounds, name="engine", daemon=True)
        self._thread.start()
        self._keys = itertools.count(1)

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        loop = _Loop([None] * len(asks))
        waiting = iter(enumerate(asks))

        def ask_next() -> None:
            entry = next(waiting, None)
            if entry is not None:
                index, ask = entry
                self._submit(ask, tenant, _Outlet(index, loop, ask_next))

        try:
            started = time.perf_counter()
            for _ in range(concurrency):
                ask_next()
            while not loop.finished.wait(LOOK_SECONDS):
                if not self._thread.is_alive():
                    raise PortError(f"{self.name}: its engine has died: {self._problem!r}")
            seconds = time.perf_counter() - started
        finally:
            sys.setswitchinterval(usual)
        if loop.error is not None:
            raise PortError(f"{self.name}: {loop.error}")
        self._quiet.wait(SETTLING_SECONDS)
        return Run(tuple(answer for answer in loop.answers if answer is not None), seconds)

    def _rounds(self) -> None:
        torch.set_num_threads(self._threads)  # a setting per thread; other users of torch here have another
        try:
            self._engine.run()
        except Exception as error:
            self._problem = error  # tell the threads that wait for an answer

    def _observe(self, record: RoundRecord) -> None:
        """Note a round. The engine is idle only after it has also told the target what to free."""
        if self._engine.scheduler.idle:
            self._quiet.set()
        else:
            self._quiet.clear()
        if self._also is not None:
            self._also(record)

    def close(self) -> None:
        self._engine.stop()
        self._thread.join()
        self._streamer.stop()

    def _submit(self, ask: Ask, tenant: str, outlet: _Outlet) -> None:
        prompt = np.asarray(ask.ids, np.int32)
        key = next(self._keys)
        sampling = Sampling(ask.temperature, seed=ask.seed)
        arrival = self._clock.now()
        request = Request(key, prompt, ask.max_tokens, sampling, len(prompt), tenant=tenant, arrival=arrival)
        self._streamer.begin(request, outlet, stream=False)
        self._quiet.clear()
        self._engine.submit(request)


@dataclass(slots=True)
class _Loop:
    """Collects the answers of one run so far."""

    answers: list[Answer | None]
    finished: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    done: int = 0


class _Outlet:
    """Takes one answer, and asks the next question from the streamer's thread."""

    needs_state = False
    streams = True

    def __init__(self, index: int, loop: _Loop, ask_next: Callable[[], None]) -> None:
        self._index = index
        self._loop = loop
        self._ask_next = ask_next
        self._started = time.perf_counter()

    def send(self, chunk: Chunk) -> None:
        seconds = time.perf_counter() - self._started
        loop = self._loop
        loop.answers[self._index] = Answer(
            tuple(chunk.ids.tolist()), seconds, drafted=chunk.drafted, accepted=chunk.accepted
        )
        loop.done += 1
        if loop.done == len(loop.answers):
            loop.finished.set()
        else:
            self._ask_next()

    def fail(self, error: Exception) -> None:
        self._loop.error = error
        self._loop.finished.set()

    def gone(self) -> bool:
        return False
