"""A public model over fakes: everything but Triton."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest

from covey.contracts import profile
from covey.contracts.clock import RealClock
from covey.contracts.ports import Residency
from covey.contracts.profile import Profile
from covey.contracts.types import DrafterInfo
from covey.process.guard import Guard
from covey.public_model import build
from covey.public_model.build import Builder, named_costs
from covey.public_model.drafter_facts import DrafterFacts
from covey.public_model.life import Life
from covey.public_model.requests import Requests
from covey.public_model.start import Start
from covey.supervision.control import Control
from covey.text.streaming import Chunk
from tests.fakes import VOCAB, HashTarget
from tests.loop.hash_drafters import HashDrafter

SECONDS = 10.0


def facts_of(vocabulary: int = VOCAB) -> DrafterInfo:
    return DrafterInfo("hash", vocabulary, 512, 1, 0)


def tensors(count: int = 3, **others: Any) -> dict[str, Any]:
    return {"input_ids": np.array([5], np.int32), "max_tokens": np.array([count], np.int32), **others}


class Outlet:
    """Keeps how a request ended."""

    needs_state = False

    def __init__(self, *, streams: bool = True) -> None:
        self.streams = streams
        self.errors: list[str] = []
        self.chunks: list[Chunk] = []
        self.reports: list[str] = []
        self.ended = threading.Event()

    def send(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        if chunk.finish is not None:
            self.ended.set()

    def report(self, text: str) -> None:
        self.reports.append(text)
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.errors.append(str(error))
        self.ended.set()

    def gone(self) -> bool:
        return False


class Building:
    """Holds an engine while it is being built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr(build, "load_tokenizer", self._load)

    def _load(self, _folder: str) -> None:
        self.began.set()
        assert self.goes_on.wait(SECONDS)


class Server:
    """Stands in for model control: says what each model is."""

    def __init__(self, states: Mapping[str, str] | Exception) -> None:
        self.said = states
        self.looks = 0

    def states(self) -> Mapping[str, str]:
        self.looks += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class World:
    """A model that has been loaded; `begin` starts it."""

    def __init__(self, *drafters: str, target: HashTarget | None = None, **settings: Any) -> None:
        chosen: Profile = profile.load(profile.DEFAULT_PROFILE)
        usual: dict[str, Any] = {"policy": "off", "costs": ""}
        speculation = replace(chosen.speculation, drafters=drafters, **usual | settings)
        self.profile = replace(chosen, speculation=speculation)
        self.target, self.drafters = target or HashTarget(), {name: HashDrafter(1.0) for name in drafters}
        self.metrics, self.server = MagicMock(), Server({})
        self.life, self.ended, self.left = Life(), list[str](), threading.Event()
        self.facts = DrafterFacts("target", self.metrics.drafter_failed)
        self.builder = Builder(
            model="covey",
            profile=self.profile,
            target=self.target,
            residency=cast("Residency", None),
            clock=RealClock(),
            metrics=self.metrics,
            guard=Guard(strict=True),
            caller="test",
            secret="",
            costs=named_costs(self.profile),
        )
        control = cast("Control", self.server)
        self.start = Start(self.builder, self.drafters.__getitem__, self.facts, control, self.life, self.ended.append)
        self.requests = Requests(self.life, self.builder.clock, self.metrics.refused)

    def begin(self) -> World:
        self.life.begin(self.start.service, self.left.set)
        return self

    def ask(self, wanted: dict[str, Any] | None = None, *, streams: bool = True) -> Outlet:
        """In a thread of its own."""
        outlet = Outlet(streams=streams)
        arguments = (self.requests.new_key(), outlet, wanted or tensors(), {})
        threading.Thread(target=self.requests.take, args=arguments, daemon=True).start()
        return outlet

    def answered(self, wanted: dict[str, Any] | None = None, *, streams: bool = True) -> Outlet:
        outlet = self.ask(wanted, streams=streams)
        assert outlet.ended.wait(SECONDS), "a request without an answer"
        return outlet

    def close(self) -> None:
        self.life.end()
        self.life.join()
        if self.life.service is not None:
            self.life.service.close()


Made = Callable[..., World]
