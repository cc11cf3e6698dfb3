"""vLLM behind the public model, its process a stub: requests there and back, and what becomes of them when it ends."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest

import covey
from covey.contracts import profile
from covey.contracts.clock import RealClock
from covey.contracts.errors import BadField, PortError, SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import Finish, Request, Sampling, TargetInfo
from covey.process.guard import Guard
from covey.requests.roster import Roster
from covey.server import FREE_PORTS, Options, Server, StartError, preflight
from covey.serving import life
from covey.serving.life import Life
from covey.serving.requests import Requests
from covey.wire.frames import decode, encode
from covey_vllm import messages
from covey_vllm.messages import Brought
from covey_vllm.serving import engine as behind
from covey_vllm.serving import start
from covey_vllm.serving.deployment import Deployment
from covey_vllm.serving.fields import VllmParser
from covey_vllm.serving.start import VllmStart
from tests.fakes import continuation
from tests.in_vllm import stub_engine
from tests.in_vllm.stub_engine import DIES, FAILS, HANGS, REFUSED
from tests.serving.worlds import SECONDS, Outlet, tensors

REPOSITORY = Path(covey.__file__).parents[2]


class World:
    """A public model whose engine is the stub."""

    def __init__(self, folder: Path, **tables: Any) -> None:
        self.metrics, self.left, self.life = MagicMock(), threading.Event(), Life()
        clock = RealClock()
        repository = REPOSITORY / "model_repository"
        self.start = VllmStart(
            "covey",
            described(folder, **tables),
            clock,
            self.metrics,
            Guard(strict=True),
            self.life,
            repository=repository,
        )
        self.requests = Requests(self.life, clock, self.metrics.refused)
        self.life.begin(self.start.service, self.left.set)

    def ask(self, first: int = 5, count: int = 7, outlet: Outlet | None = None, **others: Any) -> Outlet:
        outlet = outlet or Outlet()
        asked = tensors(count, input_ids=np.array([first, 6], np.int32), **others)
        self.requests.take(self.requests.new_key(), outlet, asked, {})
        return outlet

    def answered(self, *given: Any, **named: Any) -> Outlet:
        outlet = self.ask(*given, **named)
        assert outlet.ended.wait(SECONDS), "a request without an answer"
        return outlet

    def told(self, question: str) -> Any:
        outlet = Outlet()
        asked = {"inspect": np.array([question.encode()], np.object_)}
        self.requests.take(0, outlet, asked, {})
        assert outlet.ended.wait(SECONDS)
        return json.loads(outlet.reports[0]) if outlet.reports else outlet.errors[0]

    @property
    def process(self) -> psutil.Process:
        made = self.start._process
        assert made is not None
        return psutil.Process(made._process.pid)

    def close(self) -> None:
        self.life.end()
        self.start.close()
        self.life.join()
        if self.life.service is not None:
            self.life.service.close()


def described(folder: Path, **tables: Any) -> Profile:
    """A profile with the stub as vLLM's Python."""
    python = folder / "python"
    paths = ":".join(map(str, (REPOSITORY, Path(stub_engine.__file__).parents[2])))
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{paths}" exec {sys.executable} {stub_engine.__file__} "$@"\n'
    )
    python.chmod(0o700)
    vllm = {"python": str(python), "drafters": ["small=ngram"], **tables.pop("vllm", {})}
    target = {"kind": "vllm", "dtype": "float32", **tables.pop("target", {})}
    return profile.of_tables({"target": target, "vllm": vllm, **tables}, "test", "test")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., World]]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(life, "LEAVE_SECONDS", 0.0)
    worlds: list[World] = []

    def make(**tables: Any) -> World:
        worlds.append(World(tmp_path, **tables))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


Made = Callable[..., World]


def test_requests_are_answered_and_rounds_are_told(made: Made) -> None:
    world = made()
    outlet = world.answered(stream=np.array([True]), return_log_probs=np.array([True]), top_logprobs=np.array([2]))
    tokens = [token for chunk in outlet.chunks for token in chunk.ids.tolist()]
    assert tokens == continuation([5, 6], 7)
    last = outlet.chunks[-1]
    assert (last.finish, last.num_input, last.num_output, last.reused) == (Finish.LENGTH, 2, 7, 3)
    assert (last.drafted, last.accepted, last.acceptance, last.drafters) == (4, 2, (0, 2), (("small", 4, 2),))
    scores = np.concatenate([chunk.logprobs for chunk in outlet.chunks])
    top = np.concatenate([chunk.top_ids for chunk in outlet.chunks])
    assert (scores.tolist(), top.tolist()) == ([-0.5] * 7, [each for token in tokens for each in (token, 1)])
    served = world.metrics.served.call_args.args[0]
    assert (served.num_output, served.queued) == (7, 0.25)
    assert {each.answered(count=count).chunks[-1].num_output for each in (world,) for count in (1, 4)} == {1, 4}
    record = world.metrics.round.call_args_list[0].args[0]
    assert (record.running, record.free_blocks, record.total_blocks, record.reused) == (1, 75, 100, 5)
    assert (record.plan.drafter, record.accepts.tolist(), record.emitted) == (("small",), [1], 2)
    assert world.told("decisions:1")["decisions"] == [{"line": "a choice"}]
    assert world.told("facts")["states"] == {"small": "serving"}
    assert world.told("rounds:0")["rounds"][0]["emitted"] == 2
    assert "here drafters are not moved" in world.told("memory")
    assert [name for name, _, _ in world.metrics.follow.call_args.args[0]()] == ["covey_planner_rounds_total"]
    assert [name for name, _, _ in world.metrics.watch.call_args.args[0]()] == ["covey_drafter_serving"]


def test_what_vllm_does_not_take_its_sender_is_told(made: Made) -> None:
    world = made()
    assert "does not take this request: ValueError: not this one" in world.answered(REFUSED).errors[0]
    assert "by itself" in world.answered(FAILS).errors[0]
    assert world.answered().chunks[-1].num_output == 7
    assert "min_p: got" in world.answered(min_p=np.array([0.5], np.float32)).errors[0]


class Leaving(Outlet):
    left = False

    def gone(self) -> bool:
        return self.left


def test_who_leaves_is_served_no_more_and_makes_room(made: Made) -> None:
    world = made(scheduler={"max_running": 1, "max_waiting": 1})
    outlets = [world.ask(HANGS, outlet=Leaving()) for _ in range(2)]
    assert "queue full (2 requests wait or run)" in world.answered().errors[0]
    for outlet in outlets:
        assert isinstance(outlet, Leaving)
        outlet.left = True
        assert outlet.ended.wait(SECONDS)
        assert "cancelled" in outlet.errors[0]
    assert world.answered().chunks[-1].num_output == 7


def test_a_process_that_dies_ends_its_requests_and_the_model_leaves(made: Made) -> None:
    world = made()
    waiting = world.ask(HANGS)
    world.ask(DIES)
    assert waiting.ended.wait(SECONDS)
    assert waiting.errors
    assert world.left.wait(SECONDS)
    assert isinstance(world.life.failure, PortError)
    assert "has stopped" in world.answered().errors[0]


def test_a_process_that_dies_while_its_engine_is_built_ends_the_model(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that the system wants memory of."""
    own = start.load_tokenizer

    def late(folder: str) -> Any:
        process = world.process
        process.kill()
        assert world.start._gone.wait(SECONDS)
        return own(folder)

    begin = Life.begin
    monkeypatch.setattr(start, "load_tokenizer", late)
    monkeypatch.setattr(Life, "begin", lambda *_: None)
    world = made()
    begin(world.life, world.start.service, world.left.set)
    assert world.left.wait(SECONDS)
    assert isinstance(world.life.failure, PortError)


def test_a_cancel_that_comes_while_its_request_is_sent_is_sent_behind_it() -> None:
    sent: list[str] = []

    def send(message: messages.Message) -> None:
        if message.kind == messages.SUBMIT:
            canceller.start()
            canceller.join(0.1)
        sent.append(message.kind)

    engine = behind.VllmEngine(send, MagicMock(), RealClock(), 4)
    canceller = threading.Thread(target=engine.cancel, args=(3,))
    engine.submit(Request(3, np.array([5, 6], np.int32), 4, Sampling(), 2, arrival=0.0))
    canceller.join()
    assert sent == [messages.SUBMIT, messages.CANCEL]


def test_a_process_that_says_nothing_is_given_up(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "LOOK_SECONDS", 0.01)
    world = made()
    world.answered()
    monkeypatch.setattr(behind, "SILENT_SECONDS", 0.05)
    assert world.ask(HANGS).ended.wait(SECONDS)
    assert world.left.wait(SECONDS)


@pytest.mark.parametrize(("dtype", "said"), [("float64", "vLLM cannot load"), ("float16", "process has ended")])
def test_a_start_that_fails_says_why(made: Made, dtype: str, said: str) -> None:
    world = made(target={"dtype": dtype})
    assert said in world.answered().errors[0]
    assert said in str(world.life.serves(SECONDS))
    assert world.left.wait(0.5) == (dtype == "float16"), "what cannot be loaded is not tried again"


def test_a_drain_lets_requests_end_and_the_end_leaves_no_process(made: Made) -> None:
    world = made()
    world.answered()
    waiting, service = world.ask(HANGS), world.life.service
    assert service is not None
    assert service.drain() == 1
    assert "draining" in world.answered().errors[0]
    process = world.process
    world.close()
    assert waiting.ended.wait(SECONDS)
    assert not process.is_running()


def test_a_step_is_the_same_at_both_ends() -> None:
    found = [
        Brought(3, [5, 6], [-1.0, -2.0], [[(5, -1.0)], [(9, -0.5)]], Finish.EOS, 2, 0.5, {"drafted": 1}),
        Brought(4, [7]),
        Brought(9, [], finish=Finish.LENGTH),
    ]
    results = messages.results(decode(encode(messages.step(found))))
    assert results == [
        found[0]._replace(top=[[[5, -1.0]], [[9, -0.5]]]),
        *(each._replace(logprobs=[], top=[]) for each in found[1:]),
    ]
    assert [each.finish for each in results] == [Finish.EOS, None, Finish.LENGTH]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"min_p": np.array([0.1], np.float32)}, "min_p"),
        ({"logit_bias_ids": np.array([3], np.int32), "logit_bias": np.array([0.0], np.float32)}, "logit_bias_ids"),
        ({"slo_class": np.array([b"chat"], np.object_)}, "slo_class"),
        ({"slo_ttft_ms": np.array([5.0], np.float32)}, "slo_ttft_ms"),
        ({"verification": np.array([b"coupled"], np.object_)}, "verification"),
        ({"speculation": np.array([b"fixed:5"], np.object_)}, "fixed:4 at most"),
        ({"num_prompt_tokens": np.array([1]), "presence_penalty": np.array([0.5], np.float32)}, "num_prompt_tokens"),
    ],
)
def test_fields_without_a_place_in_vllm_are_refused_by_name(asked: dict[str, Any], said: str) -> None:
    facts = stub_engine.facts()
    info = TargetInfo(model="target", numerics="fast", epoch=0, folder="", **facts | {"end_ids": (0,)})
    parser = VllmParser(None, info, Profile("test").limits, Roster(["small"], RealClock()), depth=4)
    usual = tensors(3, input_ids=np.array([5, 6], np.int32))
    with pytest.raises(BadField, match=said):
        parser.parse(1, 0.0, {**usual, **asked}.get)
    unset = {"min_p": np.array([0.0], np.float32), "slo_class": np.array([b""], np.object_)}
    same = {"verification": np.array([b"rejection"], np.object_), "speculation": np.array([b"fixed:4"], np.object_)}
    assert parser.parse(1, 0.0, {**usual, **unset, **same}.get).request.speculation == "fixed:4"


def test_a_profile_is_said_in_vllms_words(tmp_path: Path) -> None:
    drafters = ["small=draft_general/1", "suffix=suffix", "far=h:1/draft_general"]
    chosen = described(
        tmp_path,
        target={"kv_memory_mb": 64, "tensor_parallel": 2, "threads": 1},
        scheduler={"max_running": 8},
        speculation={"policy": "fixed:3", "draft_deadline_ms": 50.0},
        star={"secret": "/etc/secret"},
        vllm={"drafters": drafters, "arguments": ['dtype="half"', "enforce_eager=true"]},
    )
    found = Deployment.of(chosen, REPOSITORY / "model_repository")
    said = found.arguments
    assert (said["max_num_seqs"], said["kv_cache_memory_bytes"], said["tensor_parallel_size"]) == (8, 64 << 20, 2)
    assert (said["enforce_eager"], said["dtype"]) == (True, "half"), "what it says in vLLM's words goes first"
    assert said["speculative_config"]["num_speculative_tokens"] == found.depth == 3
    assert said["additional_config"]["covey"] == {
        "drafters": {
            "small": str(REPOSITORY / "model_repository" / "draft_general" / "1"),
            "suffix": "suffix",
            "far": "h:1/draft_general",
        },
        "speculation": {"policy": "fixed:3", "draft_deadline_ms": 50.0},
        "drafter": {},
        "star": {"secret": "/etc/secret"},
    }
    sized = described(tmp_path, vllm={"arguments": ["gpu_memory_utilization=0.8"]})
    assert "kv_cache_memory_bytes" not in Deployment.of(sized, REPOSITORY).arguments
    assert (
        Deployment.of(described(tmp_path, target={"kv_blocks": 9}), REPOSITORY).arguments["num_gpu_blocks_override"]
        == 9
    )


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"target": {"numerics": "invariant"}}, "target.numerics: got 'invariant'"),
        ({"target": {"run_ahead": False}}, "target.run_ahead"),
        ({"memory": {"policy": "thresholds"}}, "memory.policy"),
        ({"tenants": {"weights": ["a:2"]}}, "tenants.weights"),
        ({"speculation": {"width": 2}}, "speculation.width is refused"),
        ({"speculation": {"drafters": ["draft_general"]}}, "vllm.drafters"),
        ({"vllm": {"arguments": ["max_model_len=long"]}}, "vllm.arguments: got 'max_model_len=long'"),
        ({"vllm": {"drafters": ["small=nowhere"]}}, "got 'nowhere'"),
        ({"vllm": {"python": "/nowhere"}}, "vllm.python: got '/nowhere'"),
    ],
)
def test_settings_without_a_place_in_vllm_are_refused_by_name(tmp_path: Path, tables: Any, said: str) -> None:
    with pytest.raises(SettingError) as problem:
        Deployment.of(described(tmp_path, **tables), REPOSITORY / "model_repository")
    assert said in str(problem.value)


def test_what_vllm_could_not_be_started_with_is_refused_before(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**given: Any) -> str:
        with pytest.raises((StartError, SettingError)) as problem:
            Server(Options(**FREE_PORTS, **given)).start()
        return str(problem.value)

    monkeypatch.setenv(profile.VLLM_PYTHON_VARIABLE, "/nowhere/python")
    assert "vllm.python: got '/nowhere/python'" in refused(profile="vllm")
    monkeypatch.setenv(profile.VLLM_PYTHON_VARIABLE, sys.executable)
    assert "has no vLLM: install it there" in refused(profile="vllm")
    assert "not by --drafter" in refused(profile="vllm", drafter=str(tiny))
    monkeypatch.setattr(preflight, "LOOK_FOR_VLLM", "")
    (tmp_path / "mine.toml").write_text(f'[target]\nkind = "vllm"\n[vllm]\ndrafters = ["small={tiny}"]\n')
    assert "small cannot draft for" in refused(profile=str(tmp_path / "mine.toml"))
