"""A request that comes while the engine dies is answered."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from covey.contracts import profile
from covey.public_model import build, life, start
from covey.supervision.control import InnerControl
from covey.text.streaming import Streamer
from tests.fakes import HashTarget
from tests.public_model.worlds import Outlet
from tests.tritonio import adapters

SECONDS = 10.0
ORCHESTRATOR = {"target": "target"}


def config(**parameters: str) -> dict[str, str]:
    named = {key: {"string_value": value} for key, value in parameters.items()}
    return {"model_name": "covey", "model_config": json.dumps({"parameters": named})}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The orchestrator's, over the test's own target."""
    loaded, _fake = adapters.load(monkeypatch, "orchestrator")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(life, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(start, "FACTS_SECONDS", 0.1)
    monkeypatch.setattr(loaded, "Metrics", MagicMock())
    monkeypatch.setattr(InnerControl, "states", lambda _control: {})  # whichever server runs on this machine
    drafters = profile.load(profile.DEFAULT_PROFILE).speculation.drafters
    models = {model: [os.getpid()] for model in ("target", *drafters)}
    monkeypatch.setattr(loaded.processes, "by_model", lambda _server: models)
    monkeypatch.setattr(loaded.bls, "BlsTarget", lambda _model, **_calls: HashTarget())
    return loaded


def ask(model: Any, key: int = 1) -> Outlet:
    outlet = Outlet()
    tensors = {"input_ids": np.array([5], np.int32), "max_tokens": np.array([3], np.int32)}
    asking = threading.Thread(target=model._requests.take, args=(key, outlet, tensors, {}), daemon=True)
    asking.start()
    assert outlet.ended.wait(SECONDS), "a request without an answer"
    return outlet


class DyingEngine(MagicMock):
    """Dies when `die` is set, or while it takes a request."""

    die: threading.Event
    died: Callable[[], None]

    def run(self) -> None:
        self.die.wait(SECONDS)
        raise KeyError("unforeseen")

    def submit(self, _request: Any) -> None:
        self.die.set()
        self.died()


def test_a_request_that_comes_while_the_engine_dies_is_failed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DyingEngine(die=threading.Event(), total_blocks=64)
    monkeypatch.setattr(build, "Engine", lambda *_arguments, **_named: engine)
    monkeypatch.setattr(Streamer, "fail_all", lambda *_arguments: None)  # it was called just before
    monkeypatch.setattr(life, "STOP_SECONDS", 0.1)
    ended = threading.Event()
    monkeypatch.setattr(module.os, "kill", lambda pid, _number: ended.set() if pid == os.getpid() else None)
    model = module.TritonPythonModel()
    engine.died = lambda: model._life._thread.join(SECONDS)
    model.initialize(config(**ORCHESTRATOR))
    for key in (1, 2):
        assert ask(model, key).errors == ["the engine has stopped after an internal error; see the server's log"]
    assert model._life.service.open == 0
    assert ended.wait(SECONDS), "whoever brings back the dead must see it"
    model.finalize()
