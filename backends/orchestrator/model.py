"""Triton's adapter for the public model: requests become work for `covey.engine`, its progress becomes responses.

A BLS call before `initialize` has returned never comes back, so the engine is made a little later, in a thread that
asks the target for its facts and, when every model is loaded, measures what rounds take (`covey.measure`). Triton says
that this model is ready before that; the launcher asks, and says so after it. Requests that come earlier end the
measuring and wait for what is left.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from covey import model_folder, profile
from covey.care import calls, presence, processes
from covey.care.care import Care
from covey.care.control import HTTP_VARIABLE, LOADING, UNLOADED, of_this_server
from covey.care.rules import DRAFTER, TARGET
from covey.care.watch import Watch
from covey.clock import RealClock
from covey.engine import Engine
from covey.errors import BadField, CoveyError, Overloaded, PortError, RequestError, SettingError, StubDead
from covey.grammar_process import Compiler
from covey.grammar_verdicts import Verdicts
from covey.guard import Guard
from covey.kv.elastic import POLICIES, Budget
from covey.measure import Curves
from covey.memory import AWAY, Memory
from covey.objectives import Classes
from covey.planner import learnt
from covey.planner.baseline import Baseline
from covey.planner.build import build, measured
from covey.planner.cost_table import load_costs
from covey.planner.guarded import Kept
from covey.ports import Drafter, Ports
from covey.private import kept_folder
from covey.roster import Roster, State
from covey.rounds import RoundRecord
from covey.scheduler import Scheduler
from covey.shares import Rules
from covey.streaming import Outlet, Streamer
from covey.tokenization import load_tokenizer, tokenizer_digest
from covey.tritonio import bls, fields, link, outlets
from covey.tritonio.log import to_triton
from covey.tritonio.long_prompts import LONG, MOST_GRAMMARS, LongPrompts
from covey.tritonio.metrics import Metrics
from covey.tritonio.outlets import INSPECT, Asked, PeerOutlet, Sender, SenderOutlet, take_each
from covey.tritonio.remembered import Remembered
from covey.tritonio.reports import SECRET, Reports
from covey.tritonio.residency import TritonResidency
from covey.types import ANY_VOCABULARY, NO_OBJECTIVE, DrafterInfo, TargetInfo
from covey.worker import Thread
from covey_client.costs.table import CostTable

START_SECONDS = 300.0
LOADED_SECONDS = 0.2  # between looks whether all models are
SETTLE_SECONDS = 1.0  # after `initialize`, before the first BLS call
FACTS_SECONDS = 2.0  # that drafters are waited for at the start
FACTS_LOOK_SECONDS = 0.02
LEAVE_SECONDS = 0.5  # for what was said last to be on its way
STOP_SECONDS = 5.0  # for the round in flight; a BLS call that outlives the model's end never comes back
SWITCH_SECONDS = 0.0005  # the engine's thread gets the interpreter back from the streamer's this soon
log = logging.getLogger("covey.orchestrator")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        to_triton("covey")
        parameters = json.loads(args["model_config"])["parameters"]
        self._profile = profile.of_model(parameters)
        self._name = args["model_name"]
        self._target_name = parameters.get("of", {}).get("string_value", "")  # by which requests may ask for it
        self._caller = f"{socket.gethostname()} {os.getppid()} {self._name}"  # the same when its process is revived
        speculation = self._profile.speculation
        costs = speculation.costs
        self._costs = load_costs(profile.costs_file(costs)) if costs and costs != profile.AUTO else None
        explicit = speculation.state not in ("", profile.AUTO)
        self._state_file = learnt.file_in(speculation.state, self._name) if explicit else None
        self._keeper: learnt.Keeper | None = None
        self._clock = RealClock()
        self._calls = calls.Calls(processes.end, _processes, self._clock.now)
        self._ports = Ports(partial(bls.BlsTarget, calls=self._calls), partial(bls.BlsDrafter, calls=self._calls))
        self._target_model = parameters["target"]["string_value"]
        self._target = self._ports.target(self._target_model)
        self._control = of_this_server()
        drafters = self._profile.speculation.drafters
        self._facts: dict[str, DrafterInfo] = {}  # of the drafters that have a process, what each says of itself
        self._facts_lock = threading.Lock()
        followed = (self._target_model, *drafters)
        self._presence = presence.Presence(os.getppid(), followed, self._ask, self._came, self._ended)
        self._settled = threading.Event()  # BLS calls may be made
        self._watches = [
            Watch("calls", self._calls.look, calls.LOOK_SECONDS),
            Watch("presence", self._look_around, presence.LOOK_SECONDS),
        ]
        self._care: Care | None = None
        if HTTP_VARIABLE not in os.environ:  # tritonserver was started without a launcher, who would see to all models
            cared = {self._target_model: TARGET} | dict.fromkeys(drafters, DRAFTER)
            self._care = Care(self._control, os.getppid(), cared)
        self._keys = itertools.count(1)
        self._guard = Guard()
        self._metrics = Metrics(self._name, guard=self._guard)
        self._asked = threading.Event()  # by a caller for tokens
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._failure: CoveyError | None = None
        self._engine: Engine | None = None
        self._built = False  # the engine has been told who came
        self._peers: dict[tuple[int, int], tuple[int, PeerOutlet]] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        self._exchange = link.Exchange(self._name, self._received, self._lost)

    def execute(self, requests: list[Any]) -> None:
        take_each(requests, self._taken)

    def finalize(self) -> None:
        """Triton calls this when its own requests have ended. From now on no other model can be asked for anything."""
        self._stopping.set()
        self._asked.set()
        self._exchange.close()
        for watch in self._watches:
            watch.stop()
        self._presence.close()
        if self._care is not None:
            self._care.stop(STOP_SECONDS)
        if self._started.is_set() and self._engine is not None:
            if self._streamer.open:
                self._streamer.fail_all(Overloaded("the server is stopping"))
            self._engine.stop()
        self._thread.join(STOP_SECONDS)
        if self._engine is not None:
            self._compiler.close()
            self._new_grammars.stop()
            self._long_prompts.stop()
            self._streamer.stop()
            self._still()
            if self._keeper is not None:
                self._keeper.stop()
        self._metrics.stop()

    def _still(self) -> None:
        """Nobody is loaded or unloaded any more."""
        if self._engine is not None and self._engine.memory is not None:
            self._engine.memory.close()

    # ---- the engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._asked.wait(SETTLE_SECONDS)
        self._settled.set()
        try:
            self._start()
        except CoveyError as error:
            log.error("cannot start: %s", error)
            self._failure = error
        except Exception:
            log.exception("cannot start")
            self._failure = CoveyError("the engine could not start, after an internal error; see the server's log")
        finally:
            self._started.set()
        if self._failure is None:
            self._serve()
        elif isinstance(self._failure, PortError):
            self._leave()  # the next one may find its target

    def _start(self) -> None:
        info = self._info = self._await_target()
        drafters, ready = self._find_drafters(info)
        self._build(info, drafters, self._costs or self._measured({name: drafters[name] for name in ready}))
        with self._facts_lock:
            self._built = True
            for name, facts in self._facts.items():
                self._note_facts(name, facts)
        self._note_unloaded(drafters.keys() - self._facts.keys())

    def _serve(self) -> None:
        try:
            self._engine.run()
        except Exception:
            if self._stopping.is_set():
                return  # cut off in the middle of a round; its requests have been told
            log.exception("the engine's thread died")
            self._failure = PortError("the engine has stopped after an internal error; see the server's log")
            self._streamer.fail_all(self._failure)
            self._leave()

    def _leave(self) -> None:
        """Serve nothing any more, once those who wait have been told: a launcher brings back a model whose process has
        ended. Without one nobody would, and readiness on 24.10 tells only that a model is unloaded."""
        until = time.monotonic() + STOP_SECONDS
        while self._engine is not None and self._streamer.open and time.monotonic() < until:
            time.sleep(0.05)
        self._stopping.wait(LEAVE_SECONDS)
        if HTTP_VARIABLE in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            self._control.unload(self._name)
        except CoveyError as error:
            log.error("it stays loaded: %s", error)

    def _await_target(self) -> TargetInfo:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._target.info()
            except PortError as error:
                if self._stopping.wait(0.1) or time.monotonic() > deadline:
                    raise PortError(f"the target did not come up: {error}") from None

    def _measured(self, drafters: dict[str, Drafter]) -> CostTable | None:
        """What rounds take, where a policy wants to know it: measured when every model is loaded, which is noise."""
        speculation = self._profile.speculation
        names = measured(speculation, tuple(drafters)) if speculation.costs == profile.AUTO else ()
        if not names:
            return None
        self._await_loaded()
        curves = Curves(
            self._target,
            {name: drafters[name] for name in names},
            self._profile,
            self._clock,
            kept_folder("curves"),
            go_on=lambda: not self._asked.is_set(),
            caller=self._caller,
        )
        try:
            return curves.get()
        except Exception as error:  # whatever it is, the server can do without them
            if not isinstance(error, PortError):
                log.exception("measuring failed")
            log.warning("cost curves are learnt from nothing: %s", error)
            return None

    def _await_loaded(self) -> None:
        """The server answers over HTTP when all its models are loaded. Where no launcher said at which address, that
        the target and the drafters answered must do."""
        deadline = time.monotonic() + START_SECONDS
        while HTTP_VARIABLE in os.environ and time.monotonic() < deadline and not self._all_loaded():
            if self._asked.wait(LOADED_SECONDS):
                return

    def _all_loaded(self) -> bool:
        """As far as they will be: who failed to load is seen to when there is an engine."""
        try:
            return LOADING not in self._control.states().values()
        except CoveyError:
            return False

    def _build(self, info: TargetInfo, drafters: dict[str, Drafter], costs: CostTable | None) -> None:
        if self._stopping.is_set():
            raise Overloaded("the server is stopping")
        settings, slo, tenants = self._profile.scheduler, self._profile.slo, self._profile.tenants
        tokenizer = load_tokenizer(info.folder)
        self._streamer = Streamer(
            tokenizer,
            self._clock,
            served=self._guard.around("metrics", self._metrics.served),
            emulated=self._profile.target.kind == "emulated",
        )
        self._metrics.target(info, profile.left_out(), model_folder.read(info.folder))
        scheduler = Scheduler(
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            token_budget=settings.token_budget,
            growth_tokens=settings.growth_tokens,
            block_size=info.block_size,
            patience=slo.patience_ms / 1000,
            admission=slo.admission,
            tenants=Rules.read(tenants.weights, tenants.max_running, tenants.max_waiting),
        )
        self._baseline = Baseline(costs)
        if self._baseline.seconds is None:
            log.info("no cost table has the time of a plain token: relative latency classes wait until it is learnt")
        classes = Classes(slo.classes, lambda: self._baseline.seconds)
        self._metrics.watch(classes.targets)
        speculation = self._profile.speculation
        planner = build(
            speculation,
            tuple(drafters),
            max_rows=settings.max_running,
            costs=costs,
            tokenizer=tokenizer_digest(info.folder),
        )
        self._metrics.follow(planner.figures)
        kept = Kept(planner, self._guard)
        state_file = self._state_file or self._private_state_file(info, kept, tuple(drafters))
        if state_file is not None:
            target = f"{info.folder} {info.dtype} {info.device} {info.identity}"
            self._keeper = learnt.Keeper(state_file, kept, name=speculation.policy, target=target)
        self._engine = Engine(
            self._target,
            scheduler,
            planner,
            self._streamer,
            self._clock,
            drafters=drafters,
            draft_deadline=speculation.draft_deadline_ms / 1000,
            drafter_failed=self._drafter_failed,
            recover=self._recover,
            observe=self._observe,
            caller=self._caller,
            plain=lambda: self._baseline.seconds,
            memory=partial(self._memory, info),
            guard=self._guard,
        )
        roster, memory = self._engine.roster, self._engine.memory
        assert memory is not None, "it was given"
        self._metrics.watch(roster.gauges)
        self._metrics.watch(memory.gauges)
        self._metrics.follow(memory.totals)
        self._reports = Reports(planner, info, self._profile, roster, memory, of_this_server().secret)
        self._compiler = Compiler(info.folder, info.vocab_size)
        self._parser = fields.RequestParser(
            tokenizer,
            info,
            self._profile.limits,
            roster,
            lambda: self._engine.lasting_blocks,
            classes,
            tenants.priorities,
            target=self._target_name,
            grammars=Verdicts(self._compiler.compiled),
        )
        self._long_prompts = LongPrompts()
        self._new_grammars = LongPrompts(MOST_GRAMMARS, "new grammars")
        self._streamer.start(self._engine)
        log.info("serving %s: %s, %s numerics, %d KV blocks", info.model, info.dtype, info.numerics, info.total_blocks)

    def _memory(self, info: TargetInfo, roster: Roster, drop: Callable[[str], None]) -> Memory:
        settings, remembered = self._profile.memory, Remembered(self._name)
        return Memory(
            self._target,
            TritonResidency(self._control, self._ports, self._calls),
            roster,
            self._clock,
            POLICIES[settings.policy](settings),
            Budget(info.least_blocks, info.block_bytes, settings.budget_mb << 20, first=remembered.recall()),
            worker=Thread("residency"),
            drop=drop,
            device=info.device.partition(":")[0],
            calm=settings.calm_seconds,
            breathes=settings.policy != "off" and info.block_bytes > 0,
            remember=remembered.remember,
        )

    def _find_drafters(self, info: TargetInfo) -> tuple[dict[str, Drafter], list[str]]:
        """The profile's drafters, and which of them have said what they are. One that has not is kept, for it may say
        so later. One with another vocabulary than the target's is not."""
        names, deadline = self._profile.speculation.drafters, time.monotonic() + FACTS_SECONDS
        while not self._facts.keys() >= set(names) and time.monotonic() < deadline:
            time.sleep(FACTS_LOOK_SECONDS)
        with self._facts_lock:
            facts = dict(self._facts)
        for name in set(names) - facts.keys():
            log.warning("drafter %s is not waited for: it has not answered within %g s", name, FACTS_SECONDS)
        foreign = {name for name, own in facts.items() if _is_foreign(name, own, info)}
        ports = {name: self._ports.drafter(name) for name in names if name not in foreign}
        return ports, [name for name in ports if name in facts]

    def _note_unloaded(self, silent: Iterable[str]) -> None:
        """Drafters that do not answer because they are not in memory, as an orchestrator before this one left them."""
        if not silent:
            return
        try:
            states = self._control.states()
        except CoveyError as error:
            log.warning("who is in memory is not known: %s", error)
            return
        for name in silent:
            if states.get(name) == UNLOADED:
                self._engine.roster.moves(name, State.UNLOADED)

    def _private_state_file(self, info: TargetInfo, planner: Kept, drafters: tuple[str, ...]) -> Path | None:
        """Where `speculation.state` leaves it to us and there is something to keep. Deployments that differ do not
        write over each other's."""
        folder = kept_folder("learnt")
        if self._profile.speculation.state != profile.AUTO or folder is None or planner.state() is None:
            return None
        limits = self._profile.speculation.max_depth, self._profile.scheduler.max_running
        whose = [info.folder, info.identity, self._profile.speculation.policy, drafters, limits]
        try:
            return learnt.file_in(folder, f"{self._name}-{hashlib.sha256(repr(whose).encode()).hexdigest()[:16]}")
        except SettingError as error:
            log.warning("what the policy learns is forgotten when this server ends: %s", error)
            return None

    def _observe(self, record: RoundRecord) -> None:
        self._guard("baseline", self._baseline.update, record)
        self._guard("metrics", self._metrics.round, record)
        self._guard("reports", self._reports.round, record)

    def _drafter_failed(self, name: str, error: CoveyError) -> None:
        """A process that Triton takes for dead it asks nothing more, though it may only have found no processor for a
        second."""
        self._metrics.drafter_failed(name)
        if isinstance(error, StubDead) and self._engine.roster.state(name) not in AWAY:
            self._presence.end(name)

    def _recover(self, error: PortError) -> None:
        log.warning("the target failed and is replaced: %s", error)
        self._presence.end(self._target_model)
        self._await_target()

    # ---- who is there: the presence watch's thread, and those that ask ----------------------------------------------

    def _look_around(self) -> None:
        if self._settled.is_set():
            self._presence.look()

    def _ask(self, model: str) -> DrafterInfo | None:
        """What a drafter is. The target is asked by the engine's thread."""
        return None if model == self._target_model else self._ports.drafter(model).info()

    def _came(self, model: str, facts: DrafterInfo | None) -> None:
        if facts is not None:
            with self._facts_lock:
                self._facts[model] = facts
                if self._built:
                    self._note_facts(model, facts)

    def _note_facts(self, name: str, facts: DrafterInfo) -> None:
        """Of one that is on its way in or out of memory, whoever moves it takes note."""
        roster = self._engine.roster
        if name not in roster.names or roster.state(name) in AWAY:
            return
        if _is_foreign(name, facts, self._info):
            roster.declined(name, math.inf)
        else:
            roster.came(name, facts)

    def _ended(self, model: str) -> None:
        with self._facts_lock:
            self._facts.pop(model, None)
            if not self._built:
                return
        if model == self._target_model:
            self._engine.suspect()
        elif self._engine.roster.state(model) not in (*AWAY, State.ABSENT):
            self._engine.roster.gone(model)
            self._metrics.drafter_failed(model)

    # ---- Triton's threads, and the line's ---------------------------------------------------------------------------

    def _taken(self, asked: Asked, sender: Sender) -> None:
        outlet = SenderOutlet(asked, sender)
        if INSPECT in asked.tensors:
            self._report(asked.tensors[INSPECT], str(asked.parameters.get(SECRET, "")), outlet)
        else:
            self._take(next(self._keys), outlet, asked.tensors.get, asked.parameters)

    def _report(self, asked: Any, secret: str, outlet: SenderOutlet | PeerOutlet) -> None:
        try:
            self._wait()
            outlet.report(self._reports.answer(asked.reshape(-1)[0].decode(errors="replace"), secret))
        except Exception as error:
            if not isinstance(error, CoveyError):
                log.exception("a question could not be answered")
            outlet.fail(error)

    def _wait(self) -> None:
        """Until there is an engine; raises CoveyError when there will be none."""
        if not self._started.wait(START_SECONDS):
            raise Overloaded("the server is still starting")
        if self._failure is not None:
            raise self._failure

    def _take(self, key: int, outlet: Outlet, tensor: Any, parameters: dict[str, Any]) -> None:
        self._asked.set()
        submit = partial(self._submit, key, outlet, tensor, parameters, self._clock.now())
        problem: Exception | None = None
        try:
            self._wait()
            if self._parser.has_new_grammar(tensor):
                self._new_grammars.put(fields.tenant_of(tensor), 1, partial(self._compile, tensor, submit))
                return
        except Exception as error:
            problem = error
        self._cut(tensor, submit, problem)

    def _compile(self, tensor: Any, submit: Callable[[Exception | None], None], problem: Exception | None) -> None:
        try:
            if problem is None:
                self._parser.check_grammar(tensor)
        except Exception as error:
            problem = error
        self._cut(tensor, submit, problem)

    def _cut(self, tensor: Any, submit: Callable[[Exception | None], None], problem: Exception | None) -> None:
        """Have a long prompt cut into tokens apart from others; nothing else takes long."""
        try:
            size = 0 if problem else self._parser.prompt_bytes(tensor)
            if size >= LONG:
                self._long_prompts.put(fields.tenant_of(tensor), size, submit)
                return
        except Exception as error:
            problem = error
        submit(problem)

    def _submit(
        self,
        key: int,
        outlet: Outlet,
        tensor: Any,
        parameters: dict[str, Any],
        arrival: float,
        problem: Exception | None = None,
    ) -> None:
        """Hand a request to the engine; with a problem, or where one is found, tell its sender instead."""
        begun, objective = False, NO_OBJECTIVE
        try:
            if problem is not None:
                raise problem
            wanted = self._parser.parse(key, arrival, tensor, parameters)
            objective = wanted.request.objective
            if wanted.stream and not outlet.streams:
                raise BadField("stream", True, "false: this model answers once; stream from the decoupled one")
            self._streamer.begin(
                key,
                outlet,
                prompt=wanted.request.prompt,
                num_prompt=wanted.request.num_prompt,
                seed=wanted.request.sampling.seed,
                stream=wanted.stream,
                logprobs=wanted.request.sampling.logprobs,
                stop_words=wanted.stop_words,
                prefix=wanted.prefix,
                arrival=arrival,
                objective=objective,
            )
            begun = True
            self._engine.submit(wanted.request)
            if self._failure is not None:  # since `_wait`; the engine may have failed the open ones before this one
                raise self._failure
        except Exception as error:
            if begun:
                self._streamer.abandon(key)
            if not isinstance(error, CoveyError):
                log.exception("request failed")
            if isinstance(error, RequestError):
                self._metrics.refused(objective)
            outlet.fail(error)

    def _received(self, peer: link.Peer, message: link.Message) -> None:
        exchange, kind = message.exchange, message.kind
        entry = (id(peer), exchange)
        if kind in ("submit", "stream"):
            stateful = outlets.ASKS_FOR_STATE in message.arrays
            outlet = PeerOutlet(peer, exchange, streams=kind == "stream", needs_state=stateful)
            key = next(self._keys)
            self._peers[entry] = (key, outlet)
            outlet.closed = lambda: self._peers.pop(entry, None)
            if INSPECT in message.arrays:
                self._report(message.arrays[INSPECT], str(message.value.get(SECRET, "")), outlet)
            else:
                self._take(key, outlet, message.arrays.get, message.value)
        elif kind == "cancel" and entry in self._peers:
            key, outlet = self._peers[entry]
            outlet.cancelled = True
            self._engine.cancel(key)
        elif kind == "serves":
            started = self._started.wait(link.ANSWER_SECONDS / 2)
            peer.send(link.Message(exchange, kind, str(self._failure) if self._failure is not None else started))
        elif kind == "drain":
            if self._engine is not None:
                self._engine.drain()
                self._still()
            still = self._streamer.open if self._started.is_set() and self._engine is not None else None
            peer.send(link.Message(exchange, "draining", still))

    def _lost(self, peer: link.Peer) -> None:
        for (owner, _exchange), (key, outlet) in list(self._peers.items()):
            if owner == id(peer):
                outlet.cancelled = True
                self._engine.cancel(key)


def _is_foreign(name: str, own: DrafterInfo, info: TargetInfo) -> bool:
    """Whether a drafter has another vocabulary than the target."""
    if own.vocab_size in (ANY_VOCABULARY, info.vocab_size):
        return False
    told = name, own.vocab_size, info.model, info.vocab_size
    log.error("drafter %s is not used: its vocabulary has %d tokens, that of %s has %d", *told)
    return True


def _processes(model: str) -> dict[int, float]:
    """Those of a model of this server, which all have one parent, and for how many seconds each has been there."""
    return {pid: processes.age(pid) for pid in processes.by_model(os.getppid()).get(model, ())}
