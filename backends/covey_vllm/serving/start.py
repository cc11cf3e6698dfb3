"""Starts what a profile asks for: vLLM's process, the engine that reaches it, and what is around that."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from covey.contracts.errors import Overloaded, PortError, SettingError
from covey.contracts.ports import Clock
from covey.contracts.profile import Profile
from covey.contracts.types import JsonDict, TargetInfo
from covey.process import cpu
from covey.process.guard import Guard
from covey.requests.roster import Roster
from covey.serving.build import RESPONSE_SECONDS
from covey.serving.life import Life
from covey.serving.service import Service
from covey.text import model_folder
from covey.text.grammar_process import Compiler
from covey.text.grammar_verdicts import Verdicts
from covey.text.streaming import Streamer
from covey.text.tokenization import load_tokenizer
from covey.tritonio.reports import Reports
from covey.wire.frames import Message
from covey_vllm import messages
from covey_vllm.news import record_of
from covey_vllm.serving.deployment import Deployment
from covey_vllm.serving.engine import GONE, VllmEngine
from covey_vllm.serving.fields import VllmParser
from covey_vllm.serving.process import EngineProcess

if TYPE_CHECKING:
    from covey.tritonio.metrics import Metrics

LOOK_SECONDS = 0.2  # between looks whether a start is to go on
DECISIONS = 256  # kept
log = logging.getLogger("covey.orchestrator")
Figure = tuple[str, dict[str, str], float]


@dataclass
class Told:
    """The figures that vLLM's process has told of itself. Its line's thread changes them, any thread may read them."""

    states: dict[str, str]  # of drafters
    decisions: deque[JsonDict] = field(default_factory=lambda: deque(maxlen=DECISIONS))
    totals: list[Figure] = field(default_factory=list)
    gauges: list[Figure] = field(default_factory=list)
    reused: int = 0  # tokens of prompts that had KV already, and are not counted yet

    def latest(self, count: int) -> list[JsonDict]:
        """Return the last `count` decisions, oldest first."""
        return list(self.decisions)[-count:] if count > 0 else []


class VllmStart:
    """Owns vLLM's process, whose messages come in a thread of their own."""

    def __init__(
        self,
        model: str,
        profile: Profile,
        clock: Clock,
        metrics: Metrics,
        guard: Guard,
        life: Life,
        *,
        repository: Path,
    ) -> None:
        """`model` is the public one, of that repository. Raises SettingError."""
        self._model, self._profile, self._clock = model, profile, clock
        self._metrics, self._guard, self._life = metrics, guard, life
        self._deployment = Deployment.of(profile, repository)
        self._told = Told(dict.fromkeys(self._deployment.drafters, ""))
        self._process: EngineProcess | None = None
        self._engine: VllmEngine | None = None
        self._reports: Reports | None = None
        self._loaded, self._gone = threading.Event(), threading.Event()
        self._facts: JsonDict = {}
        self._problem: Exception | None = None

    def service(self) -> Service:
        """Have what serves; raises PortError where vLLM's process has ended, SettingError where it cannot load."""
        process = self._process = EngineProcess(self._deployment, self._model, self._received, self._ended)
        process.send(Message(0, messages.LOAD, self._deployment.arguments))
        while not self._loaded.wait(LOOK_SECONDS):
            if self._life.stopping.is_set():
                raise Overloaded("the server is stopping")
        if self._problem is not None:
            raise self._problem
        return self._built(process, self._info(self._facts))

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _received(self, message: Message) -> None:
        if message.kind == messages.LOADED:
            self._facts = message.value
            self._loaded.set()
        elif message.kind == messages.FAILED:
            self._problem = SettingError(f"vLLM cannot load {self._deployment.folder}: {message.value}")
            self._loaded.set()
        elif self._engine is not None:
            self._engine.received(message)
            if message.kind == messages.NEWS:
                self._guard("news", self._hear, message.value)

    def _ended(self) -> None:
        self._gone.set()
        if not self._loaded.is_set():
            self._problem = PortError(GONE)
            self._loaded.set()
        if self._engine is not None:
            self._engine.ended()

    def _info(self, facts: JsonDict) -> TargetInfo:
        return TargetInfo(
            model="target",
            vocab_size=facts["vocab_size"],
            max_positions=facts["max_positions"],
            block_size=facts["block_size"],
            total_blocks=facts["total_blocks"],
            end_ids=tuple(facts["end_ids"]),
            numerics="fast",
            dtype=facts["dtype"],
            device=facts["device"],
            epoch=0,
            folder=str(self._deployment.folder),
        )

    def _built(self, process: EngineProcess, info: TargetInfo) -> Service:
        profile, metrics, told = self._profile, self._metrics, self._told
        tokenizer = load_tokenizer(info.folder)
        served = self._guard.around("metrics", metrics.served)
        streamer = Streamer(tokenizer, self._clock, served=served, apart=RESPONSE_SECONDS / cpu.cores())
        most = profile.scheduler.max_running + profile.scheduler.max_waiting
        engine = self._engine = VllmEngine(process.send, streamer, self._clock, most)
        if self._gone.is_set():  # before there was an engine to tell
            engine.ended()
        reports = self._reports = Reports(told.latest, info, profile, lambda: told.states)
        metrics.target(info, (), model_folder.read(info.folder))
        metrics.follow(lambda: told.totals)
        metrics.watch(lambda: told.gauges)
        compiler = Compiler(info.folder, info.vocab_size)
        parser = VllmParser(
            tokenizer,
            info,
            profile.limits,
            Roster(told.states, self._clock),
            priorities=profile.tenants.priorities,
            grammars=Verdicts(compiler.compiled),
            depth=self._deployment.depth,
        )
        streamer.start(engine)
        log.info("serving %s: %s, %s numerics, by vLLM", info.model, info.dtype, info.numerics)
        return Service(engine, None, streamer, parser, reports, compiler)

    def _hear(self, news: JsonDict) -> None:
        """Count rounds, with what vLLM's scheduler has said since."""
        told, total = self._told, self._facts["total_blocks"]
        told.states |= news.get("states", {})
        told.decisions.extend(news.get("decisions", ()))
        told.totals = [tuple(each) for each in news.get("totals", told.totals)]
        told.gauges = [tuple(each) for each in news.get("gauges", told.gauges)]
        told.reused += news["reused"]
        now = {name: news[name] for name in ("running", "waiting", "preempted")}
        now |= {"total_blocks": total, "free_blocks": round((1 - news["usage"]) * total)}
        for each in news.get("rounds", ()):
            record = record_of(each, **now, reused=told.reused)
            told.reused = 0
            self._metrics.round(record)
            if self._reports is not None:
                self._reports.round(record)
