"""Competitor: engine, target and streamer in this process, without Triton, the wire or other processes."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from covey.clock import RealClock
from covey.engine import Engine
from covey.errors import PortError
from covey.planner.build import build
from covey.profile import Profile
from covey.runtime.target import TargetRunner
from covey.scheduler import Scheduler
from covey.streaming import Chunk, Streamer
from covey.tokenization import load_tokenizer
from covey.types import Request, Sampling
from loadtest.bench.work import Answer, Ask, Run

SWITCH_SECONDS = 0.0005  # as in the server: the engine's thread gets the interpreter back soon


class InProcess:
    """Plain decoding. Its threads sleep while nobody asks."""

    name = "in process"

    def __init__(self, profile: Profile, folder: str, end_id: int) -> None:
        settings = profile.scheduler
        target = TargetRunner.load(folder, profile.target, token_budget=settings.token_budget, name="target")
        self.target = target.info()
        self._end_id = end_id
        self._clock = RealClock()
        self._tokenizer = load_tokenizer(folder)
        self._streamer = Streamer(self._tokenizer, self._clock)
        scheduler = Scheduler(
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            token_budget=settings.token_budget,
            growth_tokens=settings.growth_tokens,
            block_size=self.target.block_size,
        )
        planner = build(profile.speculation, (), max_rows=settings.max_running)
        self._engine = Engine(target, scheduler, planner, self._streamer, self._clock)
        self._streamer.start(self._engine)
        self._threads = profile.target.threads or os.cpu_count() or 1
        self._thread = threading.Thread(target=self._rounds, name="engine", daemon=True)
        self._thread.start()
        self._keys = itertools.count(1)

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        loop = _Loop(len(asks))
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
            loop.finished.wait()
            seconds = time.perf_counter() - started
        finally:
            sys.setswitchinterval(usual)
        if loop.error is not None:
            raise PortError(f"in process: {loop.error}")
        return Run(tuple(answer for answer in loop.answers if answer is not None), seconds)

    def _rounds(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of each thread's own; whoever else uses torch here has another
        self._engine.run()

    def close(self) -> None:
        self._engine.stop()
        self._thread.join()
        self._streamer.stop()

    def _submit(self, ask: Ask, tenant: str, outlet: _Outlet) -> None:
        assert self._tokenizer is not None
        prompt = np.asarray(self._tokenizer.encode(ask.text).ids, np.int32)
        key = next(self._keys)
        sampling = Sampling(ask.temperature, end_ids=(self._end_id,), seed=ask.seed)
        self._streamer.begin(key, outlet, prompt=prompt, seed=ask.seed, stream=False, logprobs=False)
        arrival = self._clock.now()
        self._engine.submit(Request(key, prompt, ask.max_tokens, sampling, len(prompt), tenant=tenant, arrival=arrival))


@dataclass(slots=True)
class _Loop:
    """What one run has brought so far."""

    count: int
    answers: list[Answer | None] = field(init=False)
    finished: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    done: int = 0

    def __post_init__(self) -> None:
        self.answers = [None] * self.count


class _Outlet:
    """One answer; asks the next question from the streamer's thread."""

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
        loop.answers[self._index] = Answer(tuple(chunk.ids.tolist()), seconds)
        loop.done += 1
        if loop.done == loop.count:
            loop.finished.set()
        else:
            self._ask_next()

    def fail(self, error: Exception) -> None:
        self._loop.error = error
        self._loop.finished.set()

    def gone(self) -> bool:
        return False
