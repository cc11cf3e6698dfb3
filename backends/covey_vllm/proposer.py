"""The proposer that vLLM asks for drafts: `{"method": "custom_class", "model": "covey_vllm.CoveyProposer"}`.

vLLM makes one in each worker. It calls `load_model` once the target is loaded, and `propose` after every step in which
no request is about to reach the length limit. This module imports nothing of vLLM; `repair` does. A failure here costs
drafts, never a step.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from covey.contracts.clock import RealClock
from covey.contracts.errors import CoveyError, SettingError
from covey.contracts.ports import Drafter
from covey.contracts.types import Ints, JsonDict
from covey.drafters import load_drafter
from covey.planner.build import build
from covey.planner.planner import Guarded
from covey.planner.round_planner import RoundPlanner
from covey.process.guard import Guard
from covey.process.worker import Thread
from covey.requests.rounds import Round
from covey_vllm.news import News
from covey_vllm.repair import repair
from covey_vllm.rounds import Rounds
from covey_vllm.settings import LOOKUPS, NEURAL, REMOTE, SUFFIX, Settings
from covey_vllm.texts import Named, Texts, Tokens

log = logging.getLogger("covey.vllm")

A = TypeVar("A")
R = TypeVar("R")
PART = "proposer"
MOST_ROWS = 256  # of the planner's cost curves; larger batches are extrapolated


class CoveyProposer:
    """Owns the planner, this process's drafters, and the requests' texts."""

    def __init__(self, vllm_config: Any) -> None:
        """Check the settings. Raises SettingError that says what to change."""
        self.settings = Settings.of(vllm_config)
        self._clock = RealClock()
        self._guard = Guard()
        self.drafters: dict[str, Drafter] = {}
        self._texts = Texts(self.settings.limit, tuple(self.settings.drafters))
        self._planner: RoundPlanner | None = None
        self._rounds: Rounds | None = None
        self._news: News | None = None
        self._requests: Callable[[], Sequence[Named]] | None = None
        self._held: Container[str] | None = None

    def load_model(self, *_: Any, **__: Any) -> None:
        """Load the drafters. vLLM passes its own model, which is ignored."""
        repair()
        if self.settings.leads:
            self.use({name: self.loaded(name) for name in self.settings.drafters})

    def use(self, drafters: dict[str, Drafter]) -> None:
        """Use these drafters from now on."""
        self.drafters = drafters
        settings, speculation = self.settings, self.settings.profile.speculation
        remote = {name for name in drafters if settings.kind(name) == REMOTE}
        self._planner = build(speculation, tuple(drafters), max_rows=min(MOST_ROWS, settings.max_rows))
        self._rounds = Rounds(
            Guarded(self._planner, self._guard),
            drafters,
            self._clock,
            budget=settings.budget,
            deadline=speculation.draft_deadline_ms / 1000,
            ends=settings.ends,
            worker=lambda name: Thread(name) if name.removeprefix("draft-") in remote else Here(),
            caller=f"vllm {socket.gethostname()} {os.getpid()} {id(self)}",  # unique among a drafter's callers
            observe=self._observe,
            keep=[name for name in drafters if settings.kind(name) == SUFFIX],
        )
        for name, drafter in drafters.items():
            try:
                facts = drafter.info()
            except CoveyError as error:  # a drafter on another server, which may start later
                log.warning("cannot reach drafter %s, its rows decode plainly until it answers: %s", name, error)
                continue
            if facts.vocab_size > settings.vocab_size:
                raise SettingError(
                    f"drafter {name} has a vocabulary of {facts.vocab_size} tokens, vLLM's model one of "
                    f"{settings.vocab_size}"
                )
            self._rounds.roster.came(name, facts)
        log.info("proposing up to %d tokens, by %s", settings.depth, ", ".join(drafters))

    def attend(self, requests: Callable[[], Sequence[Named]], held: Container[str]) -> None:
        """Enable `news` for a program that holds the engine, and recognise requests by vLLM's names. `requests` returns
        vLLM's own requests by row; `held` contains the names of all unfinished ones. Both must be current when used."""
        self._requests, self._held = requests, held
        if self._planner is not None and self._rounds is not None:
            self._news = News(self._planner.decisions, self._rounds.roster, self.figures)

    def news(self) -> JsonDict | None:
        """Return the events since the last call, or None if this process does not draft or `attend` was not called."""
        return None if self._news is None else self._guard("news", self._news.take)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Ints,
        token_ids_cpu: Tokens,
        slot_mappings: object = None,  # noqa: ARG002 - vLLM's own proposers' business
    ) -> list[list[int]]:
        """Return drafts by row, none where plain decoding is faster. `sampled_token_ids` are the step's tokens, empty
        for a row whose prompt is still being read. `token_ids_cpu[row, : num_tokens_no_spec[row]]` is the row's
        text."""
        requests = None
        if self._requests is not None:
            requests = self._guard("requests", self._requests)
            if requests is None:  # it failed, so rows and requests can no longer be matched
                return [[] for _ in sampled_token_ids]
        drafts = self._guard(PART, self._propose, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, requests)
        return [[] for _ in sampled_token_ids] if drafts is None else drafts

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far, under Covey's names. Any thread may call."""
        yield from self._guard.figures()
        if self._planner is not None:
            yield from self._planner.figures()

    def _observe(self, done: Round) -> None:
        if self._news is not None:
            self._guard("news", self._news.round, done)

    def _propose(
        self, sampled: Sequence[Sequence[int]], lengths: Ints, tokens: Tokens, requests: Sequence[Named] | None
    ) -> list[list[int]] | None:
        if self._rounds is None:
            return None
        started = self._clock.now()
        rows = self._texts.follow(sampled, lengths, tokens, started, requests)
        self._rounds.forget(self._texts.gone(None if requests is None else self._held))
        drafts = self._rounds.next(rows, started)
        depth, limit = self.settings.depth, self.settings.limit - 1
        return [draft[: max(0, min(depth, limit - length))] for draft, length in zip(drafts, lengths.tolist())]

    def loaded(self, name: str) -> Drafter:
        """Load the drafter with this name in the settings, and return it."""
        settings = self.settings
        source, kind = settings.drafters[name], settings.kind(name)
        target = settings.target if kind in LOOKUPS else settings.folder
        return load_drafter(kind, source if kind == NEURAL else "", target, settings.profile, name=name)


class Here:
    """Implements `covey.process.worker.Worker` in the caller's thread: vLLM pins its threads to processors, and a
    thread started from one would share its processor."""

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(call(argument))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing: no thread runs."""
